"""Time series, sound and proteins."""

from __future__ import annotations

from bed import IN, SITE, Member

CLAP = """
import importlib.util

path = os.path.join(CLONE, "src/laion_clap/clap_module/loss.py")
spec = importlib.util.spec_from_file_location("clap_loss", path)
module = sys.modules["clap_loss"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
net = nn.Module()
net.logit_scale, net.logit_scale_t = nn.Parameter(torch.tensor(2.6593)), nn.Parameter(torch.tensor(2.2))
net.a, net.t = nn.Linear(16, 16), nn.Linear(16, 16)
"""

MEMBERS = {
    "TS-TCC": Member(
        folder="TS-TCC",
        code="""
package("models", "models")
from models.loss import NTXentLoss

criterion = NTXentLoss("cpu", 12, 0.2, False)
train(lambda a, b: criterion(norm(a), norm(b)))
""",
        losses=[("loss.py", IN, 5, "column 0")],
        command=SITE,
    ),
    "ts2vec": Member(
        folder="ts2vec",
        code="""
from models.losses import hierarchical_contrastive_loss

times = nn.Linear(16, 16 * 4)
train(lambda a, b: hierarchical_contrastive_loss(*(times(z).view(12, 4, 16) for z in (a, b))), modules=[times])
""",
        losses=[("losses.py", IN, 1, "")] * 2,
        command="--positives gradient",
    ),
    "CLAP": Member(
        folder="CLAP",
        code=CLAP + "loss = module.ClipLoss()\n"
        "train(lambda a, b: loss(norm(a), norm(b), net.logit_scale.exp()), modules=[net])\n",
        losses=[("loss.py", IN, 14.287, "diagonal")] * 2,
        command=SITE,
    ),
    "CLAP, four directions": Member(
        folder="CLAP",
        code=CLAP + "loss = module.ClipLoss(mlp_loss=True)\n"
        "train(lambda a, b: loss(norm(a), norm(b), net.logit_scale.exp(), net.logit_scale_t.exp(), norm(net.a(a)), "
        "norm(net.t(b))), modules=[net])\n",
        losses=[("loss.py", IN, 14.287, "diagonal")] * 2 + [("loss.py", IN, 9.025, "diagonal")] * 2,
        command=SITE,
    ),
    "transformers wav2vec2": Member(
        "",
        """
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining
from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices, _sample_negative_indices

torch.manual_seed(0)
config = Wav2Vec2Config(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(16, 16),
    conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_codevectors_per_group=8,
    num_codevector_groups=2, codevector_dim=16, proj_codevector_dim=16, num_negatives=5,
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
)
model = Wav2Vec2ForPreTraining(config).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    sound = torch.randn(2, 800)
    length = int(model._get_feat_extract_output_lengths(800))
    mask = _compute_mask_indices((2, length), 0.4, 3)
    negatives = _sample_negative_indices((2, length), 5, mask_time_indices=mask)
    loss = model(sound, mask_time_indices=torch.tensor(mask), sampled_negative_indices=torch.tensor(negatives)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("modeling_wav2vec2.py", IN, 10, "column 0")],
        SITE,
        needs=("transformers.modeling_utils",),
    ),
    "TFC": Member(
        "TFC-pretraining",
        """
sys.path.insert(0, CLONE + "/code/TFC")
from loss import NTXentLoss_poly

train(NTXentLoss_poly("cpu", 12, 0.2, True))
""",
        [("loss.py", IN, 5, "column 0")],  # beside a term of the probabilities, PolyLoss
    ),
    "voxceleb_trainer": Member(
        "voxceleb_trainer",
        """
from loss.angleproto import LossFunction

criterion = LossFunction()
train(lambda a, b: criterion(torch.stack([a, b, a + b], 1))[0], modules=[criterion])
""",
        [("angleproto.py", IN, 10, "diagonal")],
        SITE,
    ),
    "CLEAN": Member(
        "CLEAN",
        """
package("CLEAN", "app/src/CLEAN")
from CLEAN.losses import SupConHardLoss

train(lambda a, b: SupConHardLoss(torch.stack([a, b, a + 0.3 * b, *(b.roll(i, 0) for i in (1, 2, 3))], 1), 0.1, 2))
""",
        [("losses.py", "supcon", 10, "mask")],
        "--product",
    ),
}
