"""Loops with the one line in them, as they are started: plainly, and by torchrun on two ranks."""

import importlib.util
import sys
from dataclasses import replace

import pytest

import scalewise
from fakes.train_command import Train
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.records import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BARE = """
import itertools, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import scalewise

several = int(os.environ.get("WORLD_SIZE", 1)) > 1
if several:
    dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = DistributedDataParallel(model) if several else model
optimizer = torch.optim.AdamW(model.parameters())
batches = ((torch.randn(16, 64), torch.randint(8, (16,))) for _ in itertools.count())
with scalewise.monitor(model, optimizer, folder="records") as m:
    for x, y in m(itertools.islice(batches, 60)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not several or dist.get_rank() == 0:
            m.log("loss", loss)
if several:
    dist.destroy_process_group()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
import scalewise

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
data = torch.utils.data.TensorDataset(torch.randn(1920, 32), torch.randint(4, (1920,)))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(data, 8)
)
with scalewise.monitor(model, optimizer, folder="records") as m:
    for x, y in m(loader):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            m.log("loss", loss)
"""
HUGGING_FACE = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import scalewise

data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (960, 16))]
config = GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
arguments = TrainingArguments(
    "out", use_cpu=True, max_steps=30, per_device_train_batch_size=8, logging_steps=10,
    gradient_accumulation_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data)
scalewise.monitor(trainer, folder="records")
trainer.train()
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"not installed: {', '.join(lacking)}")


def start(train: Train, script: str) -> tuple[Analysis, str]:
    """Its records of one device and of two, and what it said."""
    (train.cwd / "loop.py").write_text(script)
    said = ""
    for before in ((), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")):
        ran = replace(train, script=(sys.executable, *before, "loop.py"))(HF_HUB_OFFLINE="1")
        assert ran.status == 0, ran.err
        said += ran.err
    return analyse(load_sweep(train.cwd / "records")), said


@pytest.mark.parametrize(
    ("script", "model", "samples", "steps"),
    [(BARE, "Sequential", 16, (60, 60)),
     pytest.param(ACCELERATE, "Sequential", 16, (120, 60), marks=needs("accelerate")),
     pytest.param(HUGGING_FACE, "GPT2LMHeadModel", 16, (30, 30),
                  marks=needs("transformers", "accelerate"))],
    ids=["bare", "hugging_face_accelerate", "hugging_face_trainer"],
)  # fmt: skip
def test_one_device_is_compared_with_two(
    train: Train, script: str, model: str, samples: int, steps: tuple[int, int]
) -> None:
    analysis, said = start(train, script)
    assert said.count(": scalewise report records") == 2, "once a training, by rank 0"
    single, several = sorted(analysis.configurations, key=lambda config: config.devices or 0)
    assert (single.label, several.label) == (f"{model} single x1", f"{model} ddp x2")
    assert analysis.pair(several) is not None
    assert single.result is not None and several.result is not None
    assert (single.global_batch, several.global_batch) == (samples, 2 * samples)
    assert tuple(one.ranks[0].steps_completed for one in (single.result, several.result)) == steps
    first, second = several.result.ranks
    assert first.replica_fingerprint == pytest.approx(second.replica_fingerprint)
    assert first.gradient_bytes == 4 * first.parameters_total
    for rank in (first, second):
        assert rank.missing.keys() <= {"shard_audit", "any loss that is no number"}
    (cell,) = (c.path for c in analysis.sweep.cells if c.planned.devices == 2)
    rows = read_metrics(cell / "metrics" / "rank0.jsonl")
    assert {"loss", "backward_loss"} <= {name for row in rows for name in row.values}
    assert not scalewise.load(train.cwd / "records").steps.empty
    hides = script == HUGGING_FACE
    hidden = "any loss that is no number"
    assert said.count(f"scalewise: {hidden}: logging_nan_inf_filter hides it") == 2 * hides
    assert (hidden in {one.figures.get("figure") for one in analysis.remarks}) == hides
