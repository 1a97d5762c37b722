"""Code bases of 2022 to 2026, from twelve fields, and whatever came out of them."""

from __future__ import annotations

from bed import IN, OUT, SITE, UNKNOWN, Member

BLIP2 = """
absent("lavis.common.utils", "omegaconf"), stub("lavis.common.registry", registry=types.SimpleNamespace())
package("lavis", "lavis"), package("lavis.common", "lavis/common"), package("lavis.models", "lavis/models")
sys.modules["lavis.common.registry"].registry.register_model = lambda name: lambda cls: cls
alone = dict(download_cached_file=None, is_dist_avail_and_initialized=lambda: False)
stub("lavis.common.dist_utils", **alone), package("lavis.models.blip2_models", "lavis/models/blip2_models")
stub("lavis.models.blip2_models.blip2", Blip2Base=nn.Module, compute_sim_matrix=None, disabled_train=None)
package("lavis.models.blip_models", "lavis/models/blip_models")
outputs = dict(BlipOutput=types.SimpleNamespace, BlipOutputFeatures=None)
stub("lavis.models.blip_models.blip_outputs", **outputs)
load("lavis/models/base_model.py", "lavis.models.base_model").all_gather_with_grad = lambda x: x
torch.distributed.get_rank = lambda *group: 0
from lavis.models.blip2_models.blip2_qformer import Blip2Qformer


class Queries(nn.Module):
    def bert(self, ids=None, query_embeds=None, encoder_hidden_states=None, **options):
        hidden = self.texts if query_embeds is None else query_embeds + encoder_hidden_states.mean(1, keepdim=True)
        return types.SimpleNamespace(last_hidden_state=hidden, past_key_values=None)

    def forward(self, ids, **options):
        return types.SimpleNamespace(loss=self.texts.square().mean())


class Tokens(types.SimpleNamespace):
    input_ids, attention_mask, bos_token_id, pad_token_id = torch.ones(12, 4).long(), torch.ones(12, 4).long(), 2, 0

    def __call__(self, *texts, **options):
        return self

    def to(self, device):
        return self


class Own(Blip2Qformer):
    def __init__(self):
        nn.Module.__init__(self)
        self.tokenizer, self.visual_encoder, self.ln_vision = Tokens(), nn.Identity(), nn.Identity()
        self.Qformer, self.query_tokens, self.max_txt_len = Queries(), nn.Parameter(torch.randn(1, 3, 8)), 4
        self.vision_proj, self.text_proj, self.itm_head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.temp = nn.Parameter(torch.tensor(0.07))


model = Own()


def loss(a, b):
    model.Qformer.texts = b.view(12, 2, 8)
    return model({"image": a.view(12, 2, 8), "text_input": None{more}}).loss


train(loss, modules=[model])
"""
CIC = """
absent("hydra", "dm_env"), package("agent", "agent")
stub("utils", weight_init=lambda module: None), stub("agent.ddpg", DDPGAgent=object)
from agent.cic import CIC, CICAgent

agent = object.__new__(CICAgent)
agent.temp, agent.cic, skills = 0.5, CIC(16, 8, 32, True), torch.rand(12, 8)
train(lambda a, b: agent.compute_cpc_loss(a, b, skills)[0].mean(), modules=[agent.cic])
"""
ANGLE = """
losses = load("angle_emb/loss.py", "angle_losses")
equal, mixed, degrees = torch.ones(24, 1), (torch.arange(12) % 3 > 0).float(), torch.arange(12.0)
mixed, degrees = mixed.repeat_interleave(2)[:, None], degrees.repeat_interleave(2)[:, None]


def pairs(a, b):
    return torch.stack([a, b], 1).flatten(0, 1)


train(lambda a, b: {loss})
"""
INFOMAX = """
absent("dgl")
losses = load("commons/losses.py", "infomax_losses")
criterion = losses.{loss}
train(lambda a, b: criterion(a, {keys}))
"""
MUSIC = """
absent("torchaudio", "torchaudio.transforms", "audiolm_pytorch", "audiolm_pytorch.utils", "x_clip")
absent("x_clip.tokenizer", "vector_quantize_pytorch", "beartype.typing")
stub("beartype", beartype=lambda f: f), package("musiclm_pytorch", "musiclm_pytorch")
music = load("musiclm_pytorch/musiclm_pytorch.py", "musiclm_pytorch.musiclm_pytorch")
criterion = music.{loss}
"""
TIMES = """
losses, times = load("src/models/losses.py", "timesurl_losses"), nn.Linear(16, 6 * 8)
train(lambda a, b: losses.{loss}(*(times(z).view(12, 6, 8) for z in (a, b))), modules=[times])
"""
OPENSHAPE = """
absent("wandb")
trainer = object.__new__(load("src/train.py", "openshape_train").Trainer)
trainer.config, scale = types.SimpleNamespace(ngpu=1, device="cpu"), learned(2.6593)
mask, images = torch.rand(12, 12) < 0.9, nn.Linear(16, 16)
mask.fill_diagonal_(True)


def loss(a, b):
    s = scale.logit_scale.exp()
    return {loss}


train(loss, modules=[scale, images])
"""
ICLREC = """
modules, intents = load("src/modules.py", "iclrec_modules"), torch.arange(12) // 3
centers = torch.randn(4, 16)[intents]
train(lambda a, b: {loss})
"""

MEMBERS = {
    **{
        f"LAVIS BLIP-2, {name}": Member("LAVIS", BLIP2.replace("{more}", more), losses, command)
        for name, more, losses, command in (
            ("smoothed labels", "", [("blip2_qformer.py", IN, 14.287, "soft targets")] * 2, ""),
            ("several captions", ', "image_id": torch.arange(12) // 2', [("blip2_qformer.py", UNKNOWN, 0, "")], ""),
        )
    },
    "Rank-N-Contrast": Member(
        "Rank-N-Contrast",
        """
criterion, ages = load("loss.py", "rnc_loss").RnCLoss(), torch.arange(12.0)[:, None]
train(lambda a, b: criterion(torch.stack([a, b], 1), ages))
""",
        [("loss.py", UNKNOWN, 0, "")],
    ),
    "cic": Member("cic", CIC, []),
    **{
        f"AnglE, {name}": Member("AnglE", ANGLE.replace("{loss}", call), losses, command)
        for name, call, losses, command in (
            ("in batch", "losses.in_batch_negative_loss(equal, pairs(a, b))", [("loss.py", IN, 20, "")], SITE),
            (
                "in batch, some labels 0",
                "losses.in_batch_negative_loss(mixed, pairs(a, b))",
                [("loss.py", IN, 20, "")],
                SITE,
            ),
            (
                "hard negatives",
                "losses.contrastive_with_negative_loss(a, b, b.flip(1))",
                [("loss.py", IN, 20, "diagonal")],
                SITE,
            ),
            ("CoSENT", "losses.cosine_loss(degrees, pairs(a, b))", [], ""),
            (
                "three terms",
                "losses.cosine_loss(degrees, pairs(a, b)) + losses.in_batch_negative_loss(equal, pairs(a, b))"
                " + 0.02 * losses.angle_loss(degrees, pairs(a, b))",
                [("loss.py", IN, 20, "")],
                "",
            ),
        )
    },
    **{
        f"3DInfomax {call.partition('(')[0]}": Member(
            "3DInfomax", INFOMAX.replace("{loss}", call).replace("{keys}", keys), losses, command
        )
        for call, keys, losses, command in (
            ("NTXent(tau=0.1)", "b", [("losses.py", OUT, 10, "")], "inject"),
            ("InfoNCE(tau=0.1, uniformity_reg=0.1)", "b", [("losses.py", IN, 10, "diagonal")], SITE),
            (
                "NTXentMultiplePositives(tau=0.1)",
                "torch.cat([b, b.flip(1)], 1).view(24, 16)",
                [("losses.py", UNKNOWN, 0, "")],
                "",
            ),
            ("NTXentExtraNegatives(tau=0.1)", "torch.cat([b, b.flip(1)])", [], ""),
            ("InfoNCEHard(norm=True)", "b", [("losses.py", "hcl:beta=0.5,prior=0.1", 2, "")], "inject function"),
        )
    },
    **{
        f"musiclm-pytorch, {name}": Member(
            "musiclm-pytorch", MUSIC.replace("{loss}", call) + step, losses, command, needs=("einops",)
        )
        for name, call, step, losses, command in (
            (
                "softmax",
                "SoftmaxContrastiveLearning()",
                "train(lambda a, b: criterion(norm(a), norm(b)), modules=[criterion])\n",
                [("musiclm_pytorch.py", IN, 10, "diagonal")],
                SITE,
            ),
            (
                "decoupled",
                "SoftmaxContrastiveLearning(decoupled_contrastive_learning=True)",
                "train(lambda a, b: criterion(norm(a), norm(b)), modules=[criterion])\n",
                [("musiclm_pytorch.py", OUT, 10, "diagonal")],
                SITE,
            ),
            (
                "sigmoid",
                "SigmoidContrastiveLearning()",
                "train(lambda a, b: criterion(norm(a), norm(b)), modules=[criterion])\n",
                [("musiclm_pytorch.py", "siglip", 10, "diagonal")],
                SITE,
            ),
            (
                "of layers",
                "MultiLayerContrastiveLoss(audio_dim=8, text_dim=8, dim_latent=8, layers=3)",
                """
layers = nn.Linear(16, 3 * 2 * 8)


def loss(a, b):
    a, b = (layers(z).view(12, 3, 2, 8).transpose(0, 1) for z in (a, b))
    return criterion(audio_layers=a, text_layers=b)


train(loss, modules=[criterion, layers])
""",
                [],
                "",
            ),
        )
    },
    "NCLA": Member(
        "NCLA",
        """
losses = load("loss.py", "ncla_loss")
near = (torch.rand(12, 12) < 0.2).float()
near, third = ((near + near.T) > 0).float(), nn.Linear(16, 16)
train(lambda a, b: losses.multihead_contrastive_loss([a, b, third(a)], near, tau=0.5), modules=[third])
""",
        [("loss.py", "", 0, "")],
    ),
    **{
        f"TimesURL, {name}": Member("TimesURL", TIMES.replace("{loss}", call), losses, command)
        for name, call, losses, command in (
            ("hierarchical", "hierarchical_contrastive_loss", [("losses.py", IN, 1, "")] * 2, SITE),
            ("temporal", "temporal_contrastive_loss_mixup", [("losses.py", IN, 1, "")], SITE),
        )
    },
    **{
        f"OpenShape, {name}": Member("OpenShape_code", OPENSHAPE.replace("{loss}", call), losses, command)
        for name, call, losses, command in (
            ("text", "trainer.contras_loss(a, b, s)[0]", [("train.py", IN, 14.287, "diagonal")] * 2, SITE),
            (
                "text and images",
                "trainer.contras_loss(a, b, s)[0] + trainer.contras_loss(a, images(b), s)[0]",
                [("train.py", IN, 14.287, "diagonal")] * 2,
                SITE,
            ),
            ("masked", "trainer.contras_loss(a, b, s, mask=mask)[0]", [("train.py", IN, 14.287, "diagonal")] * 2, SITE),
        )
    },
    "Contrastive-Lift": Member(
        "Contrastive-Lift",
        """
losses, instances = load("model/loss/loss.py", "lift_loss"), torch.arange(24) % 4
train(lambda a, b: losses.contrastive_loss(torch.cat([a, b]), instances, temperature=100.0))
""",
        [("loss.py", "nca", 1, "")],
    ),
    "r3m": Member(
        "r3m",
        """
absent("hydra", "numpy.core.numeric", "torchvision", "torchvision.transforms", "torchvision.utils")
trainer, encoder = load("r3m/trainer.py", "r3m_trainer").Trainer(10**9), nn.Linear(10, 8)
own = types.SimpleNamespace(l2weight=1e-5, l1weight=1e-5, langweight=0, tcnweight=1, num_negatives=3)
own.encoder_opt = torch.optim.SGD(encoder.parameters(), lr=0.05)
own.sim = lambda x, y: -torch.linalg.norm(x - y, dim=-1)


def model(images):
    return encoder(images[:, 0, 0, :10])


model.module, model.train = own, lambda: None
for step in range(6):
    trainer.update(model, (torch.randn(12, 5, 3, 224, 224), [""] * 12), step)
""",
        [("trainer.py", UNKNOWN, 0, "")],
    ),
    **{
        f"ICLRec {name}": Member("ICLRec", ICLREC.replace("{loss}", call), losses, command)
        for name, call, losses, command in (
            ("NCELoss", "modules.NCELoss(1.0, 'cpu')(a, b)", [("modules.py", IN, 1, "diagonal")], SITE),
            (
                "NCELoss, intents",
                "modules.NCELoss(1.0, 'cpu')(a, b, intents)",
                [("modules.py", IN, 1, "diagonal")],
                SITE,
            ),
            (
                "PCLoss",
                "modules.NCELoss(1.0, 'cpu')(a, b) + 0.1 * modules.PCLoss(1.0, 'cpu')(a, b, [centers], [intents])",
                [("modules.py", IN, 1, "diagonal")],
                SITE,
            ),
            ("NTXent", "modules.NTXent(tau=0.2)(a, b)", [("modules.py", IN, 5, "")], "inject function"),
            (
                "SupConLoss",
                "modules.SupConLoss(0.2, 'cpu')(torch.stack([a, b], 1), intents)",
                [("modules.py", "supcon", 5, "")],
                "inject function",
            ),
        )
    },
}
