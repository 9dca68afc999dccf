"""Train with a pipeline.

Each rank of a row holds some layers. Micro-batches pass through the ranks. Rows hold copies of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.core.strategies import StrategyTraits
from bench.transports.strategies._replica import WHOLE, Build, HeldGradient, Replica, Span, held_alike

TRAITS = StrategyTraits(inner="stages", obeys=("mesh", "order", "pipeline", "micro_batches"))

_SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
}


class Pipeline(Replica):
    """Runs torch's pipeline schedules.

    After the last micro-batch, the ranks with the same stage average their gradients.
    """

    def __init__(self, build: Build) -> None:
        from torch.distributed import pipelining

        super().__init__(build)
        grid, torch = build.grid, build.torch
        row = build.groups.of(grid.rows())
        self._copies = build.groups.of(grid.columns())
        place = row.rank()
        self._first, self._last = place == 0, place == grid.inner - 1
        blocks, per_rank = build.blocks(WHOLE), build.case.chunks_per_stage
        num_chunks = grid.inner * per_rank
        self._numbers = [
            range(len(blocks) * chunk // num_chunks, len(blocks) * (chunk + 1) // num_chunks)
            for chunk in range(place, num_chunks, grid.inner)
        ]
        chunks = [torch.nn.Sequential(*(blocks[number] for number in numbers)) for numbers in self._numbers]
        self.model = torch.nn.ModuleList(chunks)
        stages = [
            pipelining.PipelineStage(
                module, place + index * grid.inner, num_chunks, torch.device(build.place.kind), group=row
            )
            for index, module in enumerate(chunks)
        ]
        schedule = getattr(pipelining, _SCHEDULES[build.case.pipeline])
        self._schedule = schedule(
            stages if per_rank > 1 else stages[0], build.num_micro_batches, loss_fn=self._loss, scale_grads=False
        )
        self._spans: list[Span] = []
        for module in chunks:
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end)
        self.optimizer = build.optimizer(self.model.parameters())

    def passes(self, inputs: Any, targets: Any) -> list[Span]:
        """Run the schedule, and average gradients over the copies.

        All time of the step outside the forward passes counts as backward time.
        """
        self._spans, build = [], self.build
        began = self.build.place.mark()
        given = {"target": targets} if self._last else {}
        self._schedule.step(*((inputs,) if self._first else ()), **given)
        if build.grid.outer > 1:
            for weight in self.model.parameters():
                build.torch.distributed.all_reduce(weight.grad, group=self._copies)
                weight.grad.div_(build.grid.outer)
        edges = [began, *(edge for span in self._spans for edge in span[1:]), self.build.place.mark()]
        between = [("backward", edges[place], edges[place + 1]) for place in range(0, len(edges), 2)]
        return [*self._spans, *between]

    def blocks(self) -> list[tuple[int, Any]]:
        """Return the blocks of this rank's stages."""
        return [
            (number, block)
            for numbers, module in zip(self._numbers, self.model, strict=True)
            for number, block in zip(numbers, module, strict=True)
        ]

    def held(self) -> Iterator[HeldGradient]:
        """Yield the gradients of this rank's stages. All ranks of a mesh column hold the same stages."""
        grid = self.build.grid
        _, column = grid.place(self.build.rank)
        yield from held_alike(self, f"stage {column}", WHOLE, grid.columns()[column])

    def _loss(self, output: Any, targets: Any) -> Any:
        return self.build.source.loss(output, targets, self.build.num_micro_batches)

    def _begin(self, *_: Any) -> None:
        self._spans.append(("forward", self.build.place.mark(), 0.0))

    def _end(self, *_: Any) -> None:
        self._spans[-1] = ("forward", self._spans[-1][1], self.build.place.mark())


STRATEGY = Pipeline
