"""The derived collectives of a step are those that PyTorch makes: operation, bytes, group and number of calls.

torch's fake process group runs one rank of any world in one process. Models are small, in the proportions
of the workloads. A pass of the whole file takes about a minute of one CPU.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.residual import Residual
from bench.predict.layout import ParallelLayout, layout
from bench.predict.operations import flops_per_sample
from bench.predict.tensors import filled_buckets, model_tensors
from bench.predict.training import Zero1Exchange, communications
from bench.predict.workload import Mesh, Workload
from bench.predict.workload_file import load_workload

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

WORKLOADS = Path(__file__).parents[2] / "workloads"
FILES = sorted(file.stem for file in WORKLOADS.glob("*.yaml"))
NAMES = [name for name in FILES if load_workload(name, WORKLOADS).model.layers]
DENSE = [name for name in NAMES if load_workload(name, WORKLOADS).model.experts == 1]
slow = pytest.mark.slow


def small(name: str, num_layers: int = 2, **others: Any) -> Workload:
    """Return a workload with the proportions of a file, and the mesh of one data-parallel group unless given."""
    from tests.predict import fake_group

    whole = load_workload(name, WORKLOADS)
    model = whole.model
    assert model.heads and model.hidden and model.feedforward
    hidden = 4 * model.heads
    sizes: dict[str, Any] = {"layers": num_layers, "hidden": hidden, "tokens": 8}
    sizes |= {"feedforward": hidden * model.feedforward // model.hidden}
    sizes |= {"vocabulary": 264} if model.vocabulary else {"patch": 24, "classes": 10}
    return replace(whole, model=fake_group.resized(whole, sizes), batch=1, mesh=others.pop("mesh", Mesh()), **others)


def check(
    real: Counter[Any], found: ParallelLayout, only: str = "", zero1: Zero1Exchange = Zero1Exchange.PARTS
) -> None:
    from tests.predict import fake_group

    calls = [each for each in communications(found, zero1) if not only or each.when == only]
    assert real == fake_group.derived(calls)
    assert real


def buckets(name: str, nodes: int, rank: int, *, zero1: bool = False, **others: Any) -> None:
    from tests.predict import fake_group

    found = layout(small(name, strategy="zero1" if zero1 else "ddp", **others), nodes, 8)
    check(fake_group.of_buckets(found, rank, broadcasts=zero1), found, zero1=Zero1Exchange.BROADCASTS)


def mesh(name: str, nodes: int, rank: int, **others: Any) -> None:
    from tests.predict import fake_group

    found = layout(small(name, **others), nodes, 8)
    check(fake_group.of_mesh(found, rank), found)


def test_ddp_with_given_buckets() -> None:
    buckets("vit-l-306m", 2, 3, bucket_bytes=1 << 14)


def test_fsdp_with_tensor_parallelism() -> None:
    mesh("llama-3-8b", 2, 9, mesh=Mesh(tensor=4))


def test_a_wrong_number_of_bytes_is_noticed() -> None:
    from tests.predict import fake_group

    found = layout(small("llama-3-8b"), 1, 8)
    real = fake_group.of_mesh(found, 0)
    other = replace(found.workload, compute="float16", gradients="float16")
    with pytest.raises(AssertionError):
        check(real, layout(other, 1, 8))


@pytest.mark.parametrize("name", DENSE)
def test_the_formula_of_operations_agrees_with_those_that_torch_counts(name: str) -> None:
    """Without repeated passes. One GPU counts all operations of its samples."""
    from bench.predict.operations import flops_per_sample
    from bench.transports._torch_flops import counted_flops
    from tests.predict import fake_group

    workload = small(name, recompute="none")
    model = fake_group.model_class(workload)(workload)
    batch = fake_group.model_class(workload).batch(workload)
    counted = counted_flops(lambda: model(batch).sum().backward())
    assert counted == pytest.approx(workload.batch * flops_per_sample(workload.model)[0], rel=0.05)


@slow
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize(("nodes", "bucket"), [(1, None), (16, 1 << 13), (128, 1 << 16)])
def test_ddp_of_dense_workloads(name: str, nodes: int, bucket: int | None) -> None:
    buckets(name, nodes, 8 * nodes - 3, bucket_bytes=bucket, accumulation=2)


@slow
@pytest.mark.parametrize("nodes", [1, 128])
def test_zero_1_of_torch(nodes: int) -> None:
    buckets("llama-3-70b", nodes, 5, zero1=True, accumulation=2)


@slow
@pytest.mark.parametrize(
    ("name", "nodes", "others"),
    [
        ("vit-l-306m", 1, {}),
        ("vit-l-306m", 32, {}),
        ("llama-3-8b", 1, {}),
        ("llama-3-8b", 128, {}),
        ("llama-3-8b", 128, {"mesh": Mesh(shard=8)}),
        ("llama-3-8b", 16, {"mesh": Mesh(shard=32), "accumulation": 3}),
        ("llama-3-8b", 128, {"mesh": Mesh(tensor=8)}),
        ("llama-3-8b", 1, {"mesh": Mesh(tensor=8)}),
        ("llama-3-8b", 4, {"mesh": Mesh(tensor=2, sequence=False), "recompute": "none"}),
        ("llama-3-8b", 4, {"mesh": Mesh(tensor=4, sequence=False), "recompute": "selective"}),
        ("llama-3-70b", 128, {"mesh": Mesh(tensor=8)}),
        ("llama-3-70b", 8, {"mesh": Mesh(tensor=4), "recompute": "none"}),
        ("mixtral-8x7b", 1, {}),
        ("mixtral-8x7b", 1, {"mesh": Mesh(expert=2)}),
        ("mixtral-8x7b", 2, {"mesh": Mesh(expert=8)}),
        ("mixtral-8x7b", 128, {"mesh": Mesh(expert=8), "recompute": "none"}),
    ],
)
def test_sharded_meshes(name: str, nodes: int, others: dict[str, Any]) -> None:
    accumulation = others.get("accumulation", 1)
    mesh(name, nodes, 8 * nodes - 2, strategy="zero3", **others | {"accumulation": accumulation})


@slow
@pytest.mark.parametrize(("sequence", "recompute"), [(True, "full"), (False, "none")])
def test_tensor_parallelism_alone(sequence: bool, recompute: str) -> None:
    """Without data-parallel ranks: gradients of norms are added once per step."""
    one = {"strategy": "ddp", "recompute": recompute, "accumulation": 2}
    mesh("llama-3-70b", 1, 3, mesh=Mesh(tensor=8, sequence=sequence), **one)


@slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("nodes", "stages"), [(4, 4), (128, 8)])
def test_pipelines(schedule: str, nodes: int, stages: int) -> None:
    from tests.predict import fake_group

    workload = small("llama-3-70b", stages, mesh=Mesh(pipeline=stages), accumulation=stages + 1)
    found = layout(workload, nodes, 8)
    middle = found.num_gpus // stages * (stages // 2)
    check(fake_group.of_pipeline(found, middle, schedule), found, "hop")


@slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_sharded_stages_gather_once_per_step(schedule: str) -> None:
    """A stage between two others has layers only."""
    from tests.predict import fake_group

    workload = small("llama-3-70b", 8, mesh=Mesh(pipeline=4), accumulation=5, strategy="zero3")
    found = layout(workload, 4, 8)
    calls = [each for each in communications(found) if each.when in ("unit", "hop")]
    assert fake_group.of_pipeline(found, 17, schedule) == fake_group.derived(calls)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bucket", [None, 1 << 20, 25 << 20, 100 << 20])
def test_buckets_of_full_size_are_those_of_torch(name: str, bucket: int | None) -> None:
    """torch's own function divides tensors of the workload's sizes, which need no memory."""
    workload = load_workload(name, WORKLOADS)
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    assert of_model is not None
    experts = of_model.expert * (workload.model.experts // workload.mesh.expert)
    tensors = [*of_model.inputs, *(of_model.layer + experts) * (workload.model.layers or 0), *of_model.outputs]
    bfloat16 = [torch.empty(each.rows, each.columns, device="meta", dtype=torch.bfloat16) for each in tensors[::-1]]
    limits = [1 << 20, 25 << 20] if bucket is None else [bucket]
    indices, _ = torch.distributed._compute_bucket_assignment_by_size(bfloat16, limits)
    real = [sum(bfloat16[index].numel() for index in each) * 2 for each in indices]
    ours = [size for size, number in filled_buckets(tensors, 2, bucket, 2) for _ in range(number)]
    assert ours == real


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vit-l-306m"])
def test_tensors_of_full_size_have_the_parameters_of_the_source(name: str) -> None:
    """The sources of these files count every parameter; nothing is left over for a table of positions."""
    model = load_workload(name, WORKLOADS).model
    found = model_tensors(model, 1)
    assert found is not None and model.layers
    of_layer = sum(each.elements for each in (*found.layer, *found.expert * model.experts))
    ends = sum(each.elements for each in (*found.inputs, *found.outputs))
    assert (ends + model.layers * of_layer, len(found.inputs)) == (model.parameters, 1)


def residual(**others: Any) -> Workload:
    """Return the convolutional workload with small blocks."""
    whole = load_workload("resnet-50", WORKLOADS)
    sizes: dict[str, Any] = {"blocks": (2, 1), "channels": 4, "image": 24, "classes": 10}
    model = replace(whole.model, parameters=float(Residual(**sizes).parameters), **sizes)
    return replace(whole, model=model, batch=2, **others)


@pytest.mark.parametrize(("nodes", "bucket"), [(1, None), (128, 1 << 12)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_ddp_of_convolutions(nodes: int, bucket: int | None, accumulation: int) -> None:
    """Buckets, and the statistics of norms before the forward pass."""
    from tests.predict import fake_group

    found = layout(residual(bucket_bytes=bucket, accumulation=accumulation), nodes, 8)
    check(fake_group.of_buckets(found, nodes * 8 - 1), found)


def test_convolutions_have_the_weights_and_operations_of_the_source() -> None:
    """Every weight of ResNet-50, and within 1 % the operations that torchvision states."""
    from bench.transports._torch_flops import counted_flops
    from tests.predict import fake_group

    whole = load_workload("resnet-50", WORKLOADS).model
    assert whole.residual is not None and whole.residual.parameters == whole.parameters == 25_557_032
    assert flops_per_sample(whole)[0] == pytest.approx(3 * 2 * 4.09e9, rel=0.01)
    workload = residual()
    model = fake_group.model_class(workload)(workload)
    batch = model.batch(workload)
    counted = counted_flops(lambda: model(batch).sum().backward())
    # The gradient of the image is not computed, which the formula has.
    assert workload.model.residual is not None
    image = workload.model.residual.stem.flops * workload.batch
    assert counted == workload.batch * flops_per_sample(workload.model)[0] - image
