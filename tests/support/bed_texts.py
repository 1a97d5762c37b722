"""Texts and code."""

from __future__ import annotations

from bed import IN, SENTENCES, SITE, Member

CODE_SEARCH = """
import json
import runpy
from pathlib import Path

import tokenizers
import transformers

torch.cuda.device_count = lambda: 1  # the batch is divided by it
words = ["<s>", "<pad>", "</s>", "<unk>", "<encoder-only>", "<mask>", *(f"w{i}" for i in range(60))]
tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
names = dict(pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", mask_token="<mask>")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
transformers.RobertaTokenizer.from_pretrained = classmethod(lambda *_, **__: tokenizer)
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
config = transformers.RobertaConfig(vocab_size=len(words), max_position_embeddings=90, **sizes)
transformers.RobertaModel(config).save_pretrained("bert")
texts = [[f"w{(7 * i + j) % 60}" for j in range(9)] for i in range(72)]
rows = [{"code_tokens": text, "docstring_tokens": text[:4], "url": str(i)} for i, text in enumerate(texts)]
Path("train.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
sys.path.insert(0, CLONE + "/UniXcoder/downstream-tasks/code-search")
files = "--train_data_file train.jsonl --eval_data_file train.jsonl --codebase_file train.jsonl --output_dir out"
sizes = "--train_batch_size 12 --code_length 16 --nl_length 8"
sys.argv = f"run.py --do_train --model_name_or_path bert {files} {sizes}".split()
sys.modules["transformers"].AdamW = torch.optim.AdamW  # which it had until version 5
runpy.run_path(sys.path[0] + "/run.py", run_name="__main__")
"""
DPR = """
for name in ("dpr", "dpr.models", "dpr.data", "dpr.utils"):
    package(name, name.replace(".", "/"))
stub("dpr.data.biencoder_data", BiEncoderSample=object)
stub("dpr.utils.data_utils", Tensorizer=object)
stub("dpr.utils.model_utils", CheckpointState=object)
from dpr.models.biencoder import BiEncoderNllLoss

criterion = BiEncoderNllLoss()
train(lambda a, b: criterion.calc(a[:6], b, list(range(0, 12, 2)), [[i + 1] for i in range(0, 12, 2)])[0])
"""

CONTRIEVER = """
stub("src").__path__ = [CLONE + "/src"]
sys.modules["src"].contriever, sys.modules["src"].utils = stub("src.contriever"), stub("src.utils")
torch.Tensor.cuda = lambda self: self


class Encoder(nn.Module):
    def forward(self, input_ids, attention_mask, normalize):
        return norm(input_ids)
"""

CACHED = """
sys.path.insert(0, CLONE + "/src")
from grad_cache import GradCache
from grad_cache.loss import SimpleContrastiveLoss

torch.manual_seed(0)
q, p = nn.Linear(10, 16), nn.Linear(10, 16)
optimizer = torch.optim.SGD([*q.parameters(), *p.parameters()], lr=0.05)
loss_fn = SimpleContrastiveLoss(n_hard_negatives=1)
cache = GradCache(models=[q, p], chunk_sizes=4, loss_fn=loss_fn, get_rep_fn=lambda v: v)
for _ in range(6):
    optimizer.zero_grad()
    cache(torch.randn(8, 10), torch.randn(16, 10))
    optimizer.step()
"""

ENCODERS = """
from pathlib import Path

import tiny_bert
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.cross_encoder import losses as cross
from sentence_transformers.multi_vector_encoder import losses as multi
from sentence_transformers.sparse_encoder import losses as sparse

torch.manual_seed(0)
tiny_bert.build(Path("tiny"), dropout=0.0, mlm={model} is SparseEncoder)
model = {model}("tiny", device="cpu")
criterion = {loss}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
texts = tiny_bert.texts(2, rows=6)
for _ in range(6):
    loss = criterion(texts if {model} is CrossEncoder else [model.preprocess(column) for column in texts], None)
    loss = sum(loss.values()) if isinstance(loss, dict) else loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

MEMBERS = {
    "FlagEmbedding": Member(
        "FlagEmbedding",
        """
for name in ("FlagEmbedding", "FlagEmbedding.abc", "FlagEmbedding.abc.finetune", "FlagEmbedding.abc.finetune.embedder"):
    package(name, name.replace(".", "/"))
from FlagEmbedding.abc.finetune.embedder.AbsModeling import AbsEmbedderModel as Model


class Own(Model):
    def __init__(self):
        nn.Module.__init__(self)
        self.cross_entropy, self.temperature = nn.CrossEntropyLoss(reduction="mean"), 0.02
        self.use_mrl, self.negatives_cross_device = False, False

    def encode(self, features):
        return features

    def compute_score(self, q, p):
        return torch.matmul(q, p.transpose(-2, -1)) / self.temperature

    def compute_loss(self, scores, target):
        return self.cross_entropy(scores, target)

    def save(self, folder):
        pass


model = Own()
train(lambda a, b: model(norm(a[:4]), norm(b)).loss)
""",
        [("driver.py", IN, 50, "steps of 3")],
        SITE,
        needs=("datasets",),
    ),
    "tevatron": Member(
        "tevatron",
        """
stub("peft", LoraConfig=object, TaskType=object, get_peft_model=None, PeftModel=object)
for name in ("tevatron", "tevatron.retriever", "tevatron.retriever.modeling"):
    package(name, "src/" + name.replace(".", "/"))
stub("tevatron.retriever.arguments", ModelArguments=object, TevatronTrainingArguments=object)
import transformers
stub("transformers.file_utils", ModelOutput=transformers.utils.ModelOutput)
from tevatron.retriever.modeling.encoder import EncoderModel


class Own(EncoderModel):
    def __init__(self):
        nn.Module.__init__(self)
        self.cross_entropy, self.temperature, self.is_ddp = nn.CrossEntropyLoss(), 0.02, False

    def encode_query(self, x):
        return x["x"]

    def encode_passage(self, x):
        return x["x"]


model = Own()
train(lambda a, b: model({"x": norm(a[:4])}, {"x": norm(b)}).loss)
""",
        [("encoder.py", IN, 50, "steps of 3")],
        SITE,
        needs=("transformers.modeling_utils",),
    ),
    "Prompt-BERT": Member(
        "Prompt-BERT",
        """
import runpy
from pathlib import Path

sys.path.insert(1, os.environ["PYTHONPATH"].split(os.pathsep)[0])
import tiny_bert

tiny_bert.build(Path("bert"))
Path("text.txt").write_text("".join(f"{text}\\n" for text in tiny_bert.texts(1, 64)[0]))
start, end = "*cls*_w1_w2_*sent_0*_w3_*mask*_w4_*sep+*", "--use_cpu --do_train"
sys.argv = f"train.py --model_name_or_path bert --train_file text.txt --output_dir out --max_steps 6 {end}".split()
sys.argv += "--per_device_train_batch_size 8 --max_seq_length 16 --save_strategy no --report_to none".split()
sys.argv += ["--mask_embedding_sentence", "--mask_embedding_sentence_template", start]
sys.argv += ["--mask_embedding_sentence_different_template", start.replace("w1", "w5")]
runpy.run_path(os.path.join(CLONE, "train.py"), run_name="__main__")
""",
        [("models.py", IN, 20, "diagonal")],
        SITE,
        needs=("transformers.trainer", "datasets"),
        words=("--shims", "simcse:prompt_bert"),
    ),
    "DiffCSE": Member(
        "DiffCSE",
        """
import runpy
from pathlib import Path

sys.path.insert(1, os.environ["PYTHONPATH"].split(os.pathsep)[0])
import tiny_bert

words = [f"w{i}" for i in range(120)]  # the script wants 768 units and a token of number 101
tiny_bert.build(Path("bert"), width=768, words=words)
tiny_bert.build(Path("tiny"), mlm=True, words=words)
Path("text.txt").write_text("".join(f"{text}\\n" for text in tiny_bert.texts(1, 64)[0]))
sys.argv = "train.py --model_name_or_path bert --generator_name tiny --train_file text.txt --output_dir out".split()
sys.argv += "--max_steps 6 --use_cpu --do_train --per_device_train_batch_size 8 --max_seq_length 16".split()
sys.argv += "--save_strategy no --report_to none --batchnorm --lambda_weight 0.005 --masking_ratio 0.3".split()
runpy.run_path(os.path.join(CLONE, "train.py"), run_name="__main__")
""",
        [("models.py", IN, 20, "diagonal")],
        SITE,
        needs=("transformers.trainer", "datasets"),
        words=("--shims", "simcse:diffcse"),
    ),
    **{
        f"sentence-transformers {name}": Member(
            "",
            f"""
from pathlib import Path

import tiny_bert
from sentence_transformers.sentence_transformer import losses

torch.manual_seed(0)
tiny_bert.build(Path("tiny"), dropout=0.0)
model, guide = tiny_bert.load(Path("tiny")), tiny_bert.load(Path("tiny"))
criterion = {call}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
texts = tiny_bert.texts(2, rows=6)
for _ in range(6):
    features = [model.tokenize(column) for column in texts]
    loss = criterion(features, torch.zeros(6))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            losses,
            command,
            needs=("sentence_transformers",),
        )
        for name, call, losses, command in (
            (
                "MNRL",
                "losses.MultipleNegativesRankingLoss(model)",
                [("multiple_negatives_ranking.py", IN, 20, "diagonal")],
                SENTENCES,
            ),
            (
                "Cached MNRL",
                "losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)",
                [("cached_multiple_negatives_ranking.py", IN, 20, "")],
                SENTENCES,
            ),
            ("GIST", "losses.GISTEmbedLoss(model, guide=guide)", [("gist_embed.py", IN, 100, "diagonal")], SENTENCES),
        )
    },
    **{
        f"sentence-transformers {name}": Member(
            "",
            ENCODERS.replace("{model}", model).replace("{loss}", call),
            losses,
            SENTENCES,
            ("sentence_transformers",),
        )
        for name, model, call, losses in (
            (
                "SPLADE",
                "SparseEncoder",
                "sparse.SpladeLoss(model, sparse.SparseMultipleNegativesRankingLoss(model), 0.1, 0.1)",
                [("multiple_negatives_ranking.py", IN, 1, "diagonal")],
            ),
            (
                "multi-vector",
                "MultiVectorEncoder",
                "multi.MultiVectorMultipleNegativesRankingLoss(model)",
                [("multiple_negatives_ranking.py", IN, 1, "diagonal")],
            ),
            ("cross-encoder", "CrossEncoder", "cross.MultipleNegativesRankingLoss(model)", []),
        )
    },
    "GradCache": Member(folder="GradCache", code=CACHED, losses=[("loss.py", IN, 1, "steps of 2")], command=SITE),
    "DPR": Member(folder="DPR", code=DPR, losses=[("biencoder.py", IN, 1, "steps of 2")], command=SITE),
    "Contriever, in batch": Member(
        folder="contriever",
        code=CONTRIEVER
        + """
from src.inbatch import InBatch


class Own(InBatch):
    def __init__(self):
        nn.Module.__init__(self)
        self.opt, self.encoder = types.SimpleNamespace(temperature=0.05), Encoder()
        self.norm_query, self.norm_doc, self.label_smoothing = True, True, 0.0


model = Own()
train(lambda a, b: model(a, None, b, None)[0])
""",
        losses=[("inbatch.py", IN, 20, "diagonal")],
        command=SITE,
        needs=("transformers.modeling_utils",),
    ),
    "Contriever, MoCo": Member(
        folder="contriever",
        code=CONTRIEVER
        + """
from src.moco import MoCo


class Own(MoCo):
    def __init__(self):
        nn.Module.__init__(self)
        self.temperature, self.momentum, self.queue_size, self.moco_train_mode_encoder_k = 0.05, 0.9, 24, True
        self.norm_query, self.norm_doc, self.label_smoothing = True, True, 0.0
        self.encoder_q, self.encoder_k = Encoder(), Encoder()
        self.register_buffer("queue", norm(torch.randn(24, 16)).T.contiguous())
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))


model = Own()
train(lambda a, b: model(a, None, b, None)[0])
""",
        losses=[("moco.py", IN, 20, "column 0")],
        command=SITE,
        needs=("transformers.modeling_utils",),
    ),
    "UniXcoder code search": Member(
        "CodeBERT", CODE_SEARCH, [("run.py", IN, 20, "diagonal")], SITE, needs=("transformers.modeling_utils",)
    ),
}
