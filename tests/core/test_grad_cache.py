"""Chunks through an encoder: the loss and the gradients of one pass, in the memory of one chunk."""

from __future__ import annotations

import copy
from collections import UserDict

import gathered
import pytest
import torch
from gathered import UNEVEN
from processes import run
from torch import distributed as dist
from torch import nn

import counterpoint as cp

LOSS = "adnce:t=0.5,mu=0.3 + 0.1*dp"


class Encoder(nn.Module):
    """Dropout at two places, and arguments by position and by name."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Dropout(0.4), nn.LayerNorm(16))
        self.head, self.drop = nn.Linear(16, 5), nn.Dropout(0.2)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        self.seen.append(len(x))
        x = x if mask is None else x * mask
        return self.head(self.drop(self.body(x))) * scale


def inputs(samples: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(3)
    return Encoder().double()


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=f"{name}: {{}}".format)


def in_chunks(encode, x: torch.Tensor, chunk: int) -> torch.Tensor:
    """What gradcache is to equal, activations and all: the same chunks, so that dropout draws the same numbers."""
    return torch.cat([encode(part) for part in x.split(chunk)])


def step(encode, module: nn.Module, spec: str = LOSS, seed: int = 1) -> tuple[float, dict[str, torch.Tensor]]:
    module.zero_grad()
    torch.manual_seed(seed)
    loss = cp.objective(spec)(encode(inputs()), encode(inputs(seed=1)))
    loss.backward()
    return loss.item(), gradients(module)


@pytest.mark.parametrize("chunk", [1, 3, 11, 50])
def test_loss_and_gradients_are_those_of_one_pass(encoder, chunk):
    encoder.eval()
    wanted = step(encoder, encoder)
    found = step(lambda x: cp.gradcache(encoder, x, chunk=chunk), encoder)
    assert found[0] == pytest.approx(wanted[0], rel=1e-12)
    assert_same(found[1], wanted[1])


@pytest.mark.parametrize("spec", [LOSS, "hcl", "arcl(dcl)", "debpos", "dro", "adnce:mu=auto"])
def test_dropout_is_the_same_in_both_passes(encoder, spec):
    wanted = step(lambda x: in_chunks(encoder, x, 4), encoder, spec)
    found = step(lambda x: cp.gradcache(encoder, x, chunk=4), encoder, spec)
    assert found[0] == pytest.approx(wanted[0], rel=1e-12)
    assert_same(found[1], wanted[1])


def test_random_numbers_go_on_as_if_there_were_no_second_pass(encoder):
    after = []
    for encode in (lambda x: in_chunks(encoder, x, 4), lambda x: cp.gradcache(encoder, x, chunk=4)):
        step(encode, encoder)
        after.append(torch.rand(3))
    torch.testing.assert_close(*after, rtol=0, atol=0)


def test_nothing_but_a_chunk_is_ever_encoded(encoder):
    z = cp.gradcache(encoder, inputs(), chunk=4)
    assert encoder.seen == [4, 4, 3]
    z.sum().backward()
    assert encoder.seen == [4, 4, 3, 3, 4, 4]  # in the opposite order, as autograd does


def test_without_gradients_there_is_one_pass(encoder):
    with torch.no_grad():
        z = cp.gradcache(encoder.eval(), inputs(), chunk=4)
        torch.testing.assert_close(z, encoder(inputs()))
    assert not z.requires_grad
    assert encoder.seen == [4, 4, 3, 11]


def test_the_sum_of_several_backward_passes(encoder):
    encoder.eval()
    whole, parts = copy.deepcopy(encoder), encoder
    for encode in (whole, lambda x: cp.gradcache(parts, x, chunk=4)):
        for seed in (0, 5):
            (cp.InfoNCE()(encode(inputs(seed=seed)), encode(inputs(seed=seed + 1))) / 2).backward()
    assert_same(gradients(parts), gradients(whole))


def test_gradients_can_be_asked_for_without_being_stored(encoder):
    encoder.eval()
    wanted = torch.autograd.grad(encoder(inputs()).square().sum(), [*encoder.parameters()])
    found = torch.autograd.grad(cp.gradcache(encoder, inputs(), chunk=3).square().sum(), [*encoder.parameters()])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert all(p.grad is None for p in encoder.parameters())


def test_inputs_with_a_gradient_get_theirs(encoder):
    encoder.eval()
    head = nn.Linear(8, 8).double()
    found = []
    for encode in (encoder, lambda x: cp.gradcache(encoder, x, chunk=4)):
        x = inputs().requires_grad_()
        found.append(torch.autograd.grad(encode(head(x)).square().sum(), [x, *head.parameters(), encoder.head.weight]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_parameters_that_share_one_gradient():
    """Autograd hands one tensor to both biases; adding to it in place would count chunks twice."""
    a, b = nn.Linear(8, 4).double(), nn.Linear(8, 4).double()
    both = nn.ModuleList([a, b])
    wanted = step(lambda x: a(x) + b(x), both)
    found = step(lambda x: cp.gradcache(lambda part: a(part) + b(part), x, chunk=2), both)
    assert_same(found[1], wanted[1])


def test_frozen_parameters_stay_without_gradient(encoder):
    encoder.body.requires_grad_(False)
    cp.gradcache(encoder, inputs(), chunk=4).sum().backward()
    assert encoder.body[0].weight.grad is None
    assert encoder.head.weight.grad is not None


def test_a_frozen_encoder_has_no_graph(encoder):
    assert not cp.gradcache(encoder.requires_grad_(False), inputs(), chunk=4).requires_grad


def test_several_encoders():
    torch.manual_seed(0)
    image, text = Encoder().double().eval(), Encoder().double().eval()
    both = nn.ModuleList([image, text])
    found = []
    for encode in (lambda e, x: e(x), lambda e, x: cp.gradcache(e, x, chunk=4)):
        both.zero_grad()
        loss = cp.InfoNCE(0.1)(encode(image, inputs()), encode(text, inputs(seed=1)), pairing="symmetric")
        loss.backward()
        found.append(gradients(both))
    assert_same(*found)


MASK = (torch.arange(11 * 8).view(11, 8) % 3 > 0).double()


@pytest.mark.parametrize(
    "given",
    [
        [inputs(), MASK],
        (inputs(), MASK, 2.0),
        {"x": inputs(), "mask": MASK},
        {"x": inputs(), "mask": MASK, "scale": 0.5},
        {"x": inputs(), "mask": None},
        {"x": inputs(), "scale": torch.tensor(2.0)},
        UserDict(x=inputs(), mask=MASK),
    ],
    ids=[
        "list",
        "tuple",
        "dict",
        "dict with a number",
        "dict with None",
        "dict with a 0-d tensor",
        "like BatchEncoding",
    ],
)
def test_kinds_of_inputs(encoder, given):
    encoder.eval()
    wanted = encoder(**given) if isinstance(given, (dict, UserDict)) else encoder(*given)
    torch.testing.assert_close(cp.gradcache(encoder, given, chunk=4), wanted, rtol=1e-12, atol=1e-12)


def test_output_picks_the_embeddings(encoder):
    encoder.eval()

    def named(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"pooled": encoder(x), "other": x}

    found = [
        step(encode, encoder)
        for encode in (encoder, lambda x: cp.gradcache(named, x, chunk=4, output=lambda out: out["pooled"]))
    ]
    assert_same(found[1][1], found[0][1])


def test_autocast_is_the_same_in_both_passes(encoder):
    encoder.float()
    x, dtypes = inputs().float(), []
    encoder.head.register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))
    found = []
    for encode in (lambda: encoder(x), lambda: cp.gradcache(encoder, x, chunk=11)):
        encoder.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            z = encode()
        z.float().square().sum().backward()  # outside
        found.append(gradients(encoder))
    assert set(dtypes) == {torch.bfloat16}
    assert_same(*found, tolerance=1e-6)


def test_autocast_of_the_backward_pass_is_left_alone(encoder):
    z = cp.gradcache(encoder.float(), inputs().float(), chunk=4)
    dtypes = []
    encoder.body[0].register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        z.sum().backward()
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    assert dtypes == [torch.float32] * 3


def test_gradient_scaler(encoder):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if hasattr(torch.amp, "GradScaler") else None
    if scaler is None:
        pytest.skip("this torch has no gradient scaler for the CPU")
    encoder.eval()
    wanted = step(encoder, encoder)[1]
    encoder.zero_grad()
    optimizer = torch.optim.SGD(encoder.parameters(), 0.1)
    loss = cp.objective(LOSS)(*(cp.gradcache(encoder, inputs(seed=s), chunk=4) for s in (0, 1)))
    scaler.scale(loss).backward()
    assert_same(gradients(encoder), {name: 64 * g for name, g in wanted.items()})
    before = copy.deepcopy(encoder.state_dict())
    scaler.step(optimizer)
    for name, p in encoder.named_parameters():
        torch.testing.assert_close(p, before[name] - 0.1 * wanted[name])


def test_an_encoder_with_checkpoints_of_its_own(encoder):
    from torch.utils.checkpoint import checkpoint

    body = encoder.body.forward
    wanted = step(lambda x: in_chunks(encoder, x, 4), encoder)
    encoder.body.forward = lambda x: checkpoint(body, x, use_reentrant=False)
    found = step(lambda x: cp.gradcache(encoder, x, chunk=4), encoder)
    assert_same(found[1], wanted[1])


def test_an_optimiser_step_in_between_is_noticed(encoder):
    z = cp.gradcache(encoder, inputs(), chunk=4)
    with torch.no_grad():
        encoder.head.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("changed", ["samples", "tokens", "scale"])
def test_an_input_changed_in_place_is_noticed(encoder, changed):
    """As plain autograd does: the backward pass encodes again."""
    inputs = {"samples": torch.randn(6, 8), "tokens": torch.arange(6), "scale": torch.tensor(2.0)}

    def encode(samples, tokens, scale):
        return encoder(samples.double() * scale) + torch.nn.functional.one_hot(tokens, 6).sum()

    z = cp.gradcache(encode, inputs, chunk=2)
    inputs[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_second_derivatives(encoder):
    found = []
    for encode in (encoder.eval(), lambda x: cp.gradcache(encoder, x, chunk=4)):
        (grad,) = torch.autograd.grad(encode(inputs()).square().sum(), encoder.head.bias, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), encoder.head.weight)[0])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_distributed_data_parallel(tmp_path):
    """Gradients are averaged once per step, with 1 and 3 chunks per view, and with parameters that are unused."""
    wanted = gathered.cached(0, [7])
    for process in run(gathered.cached_all_ways, tmp_path, 2, UNEVEN):
        for found in process:
            assert found["averaged"] == 3
            for name in wanted.keys() - {"averaged"}:
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-12)


def test_a_static_graph_is_refused(encoder, tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="static_graph=True"):
            cp.gradcache(nn.parallel.DistributedDataParallel(encoder, static_graph=True), inputs(), chunk=4)
    finally:
        dist.destroy_process_group()


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, "4"])
def test_a_wrong_chunk(encoder, chunk):
    with pytest.raises(ValueError, match=r"chunk must be a whole number of at least 1, got"):
        cp.gradcache(encoder, inputs(), chunk=chunk)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda z: z.mean(0, keepdim=True), ValueError, r"a row for each of 4 inputs, got shape \(1, 5\)"),
        (lambda z: z.sum(1), ValueError, r"a row for each of 4 inputs, got shape \(4\)"),
        (lambda z: z.sum(), ValueError, r"a row for each of 4 inputs, got shape \(\)"),
        (lambda z: {"pooled": z}, TypeError, "a tensor of embeddings from the encoder, got dict: give output="),
    ],
)
def test_an_output_that_is_not_rows_per_input(encoder, wrong, error, text):
    with pytest.raises(error, match=text):
        cp.gradcache(lambda x: wrong(encoder(x)), inputs(), chunk=4)
    with pytest.raises(error, match=text):
        cp.gradcache(encoder, inputs(), chunk=4, output=wrong)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([inputs(), MASK[:5]], ValueError, "11 in input 1, 5 in input 2"),
        ({"x": inputs(), "mask": MASK[:5]}, ValueError, "11 in x, 5 in mask"),
        (inputs()[:0], ValueError, "0 in input 1"),
        ([], TypeError, "got nothing"),
        ("sentences", TypeError, "got str"),
        ({"scale": torch.tensor(1.0)}, TypeError, "got Tensor"),
    ],
)
def test_inputs_without_rows(encoder, given, error, text):
    with pytest.raises(error, match=text):
        cp.gradcache(encoder, given, chunk=4)


# ---- memory --------------------------------------------------------------------------------------


def test_memory_is_that_of_a_chunk(tmp_path):
    (whole,), (chunks,) = (run(gathered.memory, tmp_path, 1, chunk) for chunk in (0, 128))
    activations = gathered.SAMPLES * gathered.LAYERS * gathered.HIDDEN * 4 / 1024
    assert whole > activations
    assert chunks < 0.1 * activations
