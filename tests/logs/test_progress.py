"""Steps, success and restarts in the lines of a log, and what they say about a message."""

from __future__ import annotations

import pytest

from bench.logs.failure_events import EventReader
from bench.logs.progress import Later, ProgressReader

ERROR = "ValueError: bad batch\n"


def later_than(text: str, line: int = 0, stream: str | None = None, rank: int | None = None) -> Later:
    """What a text shows after one of its lines."""
    reader = ProgressReader()
    for number, raw in enumerate(text.split("\n"), start=1):
        reader.read(number, raw, None)
    return reader.later(line, stream, rank)


@pytest.mark.parametrize(
    ("text", "num_steps"),
    [
        ("step 5\nstep 6\nstep 7\n", 3),
        ("step=10, loss=2.1\nstep=50, loss=2.1\n", 2),
        ("global_step: 10\nglobal_step: 12\n", 2),
        ("iter 100: loss 2.3, time 5 ms\niter 110: loss 2.3, time 5 ms\n", 2),
        (
            "iteration      120/    5000 | skipped iterations:   0 |\n"
            "iteration      130/    5000 | skipped iterations:   0 |\n",
            2,
        ),
        (" 45%|####5     | 450/1000 [00:10<00:12, 40.1it/s]\n 46%|####6     | 460/1000 [00:10<00:12]\n", 2),
        ("\r 45%|#### | 450/1000 [00:10<00:12]\r 46%|#### | 455/1000 [00:10]\r 46%|#### | 460/1000 [00:10<00:12]\n", 4),
        ("120/1563 [=====>....] - ETA: 5s - loss: 0.3\n122/1563 [=====>....] - ETA: 5s - loss: 0.3\n", 2),
        ("Epoch: [0][511/1736]\tLoss 0.5\nEpoch: [0][521/1736]\tLoss 0.5\n", 2),
        ("Epoch 3/10 - loss: 0.3\nEpoch 5/10 - loss: 0.3\n", 2),
        ("{'loss': 2.1, 'epoch': 0.01}\n{'loss': 2.0, 'epoch': 0.02}\n", 2),
        ('{"num_updates": "10", "loss": "2.1"}\n{"num_updates": "20", "loss": "2.0"}\n', 2),
        ("\x1b[31mstep:  5  \x1b[32mloss: 2.1\n\x1b[31mstep:  6  \x1b[32mloss: 2.1\n", 2),
        ("[train] epoch: [0/1], batch: [3/100], loss: 10.1\n[train] epoch: [0/1], batch: [4/100], loss: 10.1\n", 2),
        # the numbers of ranks that follow one another, and of a bar that begins again
        ("step 5\nstep 7\nstep 5\nstep 6\nstep 8\n", 3),
        ("1/3 [00:01\n2/3 [00:02\n3/3 [00:03\n1/3 [00:01\n2/3 [00:02\n", 3),
        ("1/3 [00:01\n2/3 [00:02\n6/9 [00:03\n7/9 [00:01\n8/9 [00:02\n9/9 [00:02\n1/2 [00:02\n", 4),
        # settings, and the summary of W&B
        ("eval_steps=500\nsave_steps=600\nmax_steps: 1000\nlr_warmup_iters: 2000\n", 0),
        ("wandb:   train/global_step 4310\nwandb: eval/step 20\n", 0),
        # simulations: OpenFOAM, WRF, HPL, and the tables of LAMMPS and GROMACS
        ("Time = 0.1\n\nTime = 0.2s\nExecutionTime = 4 s\nTime = 1e-05 s to go\n", 2),
        (
            "Timing for main: time 2031-04-07_23:59:00 on domain   1:    0.81 elapsed seconds\n"
            "Timing for main: time 2031-04-08_00:00:00 on domain   1:    0.81 elapsed seconds\n"
            "Timing for Writing wrfout for domain        1:    2.3 elapsed seconds\n",
            2,
        ),
        (" Prog= 1.20%\tN_left= 90\n Prog= 2.40%\tN_left= 80\n", 2),
        ("   Step  Temp  Press\n  0  300.1  -4.1e+02\n  50  300.1  4\nWARNING: x\n 60 1 2\n 70 1 nan\n 80 1\n", 3),
        ("           Step           Time\n              0        0.00000\n\n  Bond  Angle\n  4  5.1\n", 2),
        ("  0  300.1  4.1\n  50  300.1  4\n", 0),  # rows of another table
        # work on data, and the iterations of a linear solver
        ("dataset iteration 5 of 40\ndataset iteration 6 of 40\n", 0),
        ("smoothSolver:  Solving for Ux, No Iterations 5\nGAMG:  Solving for p, No Iterations 7\n", 0),
        # losses without a number
        ("train loss: 2.1\ntrain loss: 2.0\n", 0),
        # one step that all ranks print, and no step
        ("step 5\nstep 5\nstep 5\nstep 5\n", 1),
        ("the timestep 5 of 9\nbad substep=5\n", 0),
        ("Downloading shards: 10%|#  | 1/10 [00:01<00:09]\nDownloading shards: 20%|#  | 2/10 [00:01<00:09]\n", 0),
        ("RuntimeError at step 5\nstep 6 failed\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED\n", 0),
        ("2026/03/21 12:00 /data/1/2 a [3]\nversion 1/2\n", 0),
    ],
)
def test_steps_of_many_forms_are_counted(text: str, num_steps: int) -> None:
    assert later_than(text).all_steps == num_steps


def test_losses_without_a_number_are_steps_of_their_process_only() -> None:
    later = later_than("[rank3]: loss: 2.1\n[rank3]: loss: 2.1\n[rank0]: Saved checkpoint at 120\n", stream="3")
    assert (later.own_steps, later.file_steps, later.all_steps, later.steps_since_restart) == (2, 0, 0, 2)


@pytest.mark.parametrize(
    ("begin", "rank", "num_steps"),
    [
        ("", None, 30),  # an error of no known process
        ("", 3, 0),  # the bar may be of the data that another process reads
        ("".join(f" {at}%|#  | {at}/100 [00:01<00:09]\n" for at in range(9)), 3, 30),  # the bar goes on
        ("".join(f" {at}%|#  | {at}/200 [00:01<00:09]\n" for at in range(9)), 3, 0),  # another bar
    ],
)
def test_a_bar_without_a_description_says_nothing_about_another_process(
    begin: str, rank: int | None, num_steps: int
) -> None:
    bar = "".join(f" {at}%|#  | {at}/100 [00:01<00:09]\n" for at in range(20, 50))
    assert later_than(begin + ERROR + bar, line=begin.count("\n") + 1, rank=rank).all_steps == num_steps


def test_a_host_in_brackets_names_a_process() -> None:
    text = "[node-2] step 5\n[node-2:1]: step 6\n[node-3] step 6\n[node-2] step 7\n[train2.py:7] step 9\n"
    own = [later_than(text, stream=name).own_steps for name in ("node-2", "node-2:1", "node-3", None)]
    assert own == [2, 1, 1, 1]


def test_the_course_of_a_job() -> None:
    reader = ProgressReader()
    text = "step 10\nstep 20\nlr_step 7\nTraining completed\nsaved\n"
    for number, raw in enumerate(text.split("\n"), start=1):
        reader.read(number, raw, None)
    course = reader.course(5)
    assert (course.first_step, course.last_step, course.last_step_line, course.success_line) == (10, 20, 2, 4)
    for number in range(6, 40):
        reader.read(number, f"step {number * 10}", None)
    assert reader.course(40).success_line is None  # it was about an earlier part of the job
    assert not ProgressReader().course(0)
    assert ProgressReader().course(0).facts() == {}


def test_the_span_of_the_steps_is_known() -> None:
    later = later_than("step 100\nstep 200\nstep 300\n")
    assert (later.all_steps, later.rise) == (3, 201)


def test_only_steps_after_the_line_count() -> None:
    text = "".join(f"step {number}\n" for number in range(40))
    assert [later_than(text, line).all_steps for line in (0, 10, 39, 40)] == [40, 30, 1, 0]


def test_steps_belong_to_the_process_that_printed_them() -> None:
    text = "[rank3]: step 5\n[rank0]: step 6\n[rank0]: step 9\n[default3]:step 6\nworker-1: step 9\nstep 30\n"
    own = [later_than(text, stream=name).own_steps for name in ("3", "0", "worker-1", None, "7")]
    assert own == [2, 2, 1, 1, 0]
    assert later_than(text).file_steps == 1
    assert later_than(text, rank=3).own_steps == 2 and later_than(text, rank=3).is_labelled
    assert not later_than(text).is_labelled


@pytest.mark.parametrize(
    ("line", "is_success"),
    [
        ("Training completed. Do not forget to share your model", True),
        ("Finished training in 3 h", True),
        ("fine-tuning done", True),
        ("[default] worker group successfully finished. Waiting 300 seconds", True),
        ("{'train_runtime': 10.5, 'train_loss': 2.0}", True),
        ("`Trainer.fit` stopped: `max_steps=10` reached.", True),
        ("Job 'raysubmit_1' succeeded", True),
        ("[launch.py:348:main] Process 4711 exits successfully.", True),
        ("Status:           Succeeded", True),
        ("Done training!", True),
        ("Total training time: 3:02:11", True),
        ("Saving the final model ... done", True),
        ('{"key": "run_stop", "status": "success"}', True),
        ("123.0  train  COMPLETED  0:0", True),
        ("Epoch 3 training finished", False),
        ("Training finished iteration 5 at 2026-03-21", False),
        ("waiting for the job to be completed", False),
        ("training was not completed", False),
        ("job finished with exit code 1", False),
        ("Training failed, cleanup done", False),
        ("main exited with exit code 0", False),
        ("done", False),
        ("All done", False),
        ("INFO:     Application startup complete.", False),
        ("Training data loading complete", False),
        ("Warm-up run completed, compiling kernels", False),
        ("Stage 1 pre-training finished, moving on to stage 2", False),
        ("  --exit-on-done  exit when training is complete", False),
        ("4412.extern      extern  COMPLETED      0:0", False),
        ("Normal Completed job/nightly-cleanup Job completed", False),
        ("Process completed successfully", False),
    ],
)
def test_a_report_of_success_is_recognised(line: str, is_success: bool) -> None:
    assert later_than(line + "\n").has_success == is_success
    assert later_than("step 1\n" + line + "\n", line=3).after_success == is_success


def test_a_step_between_success_and_a_message_ends_the_success() -> None:
    assert later_than("step 4\nTraining completed\n", 3).after_success
    assert not later_than("step 4\nTraining completed\nstep 5\n", 4).after_success
    assert not later_than("Training completed\n", 2).after_success


def test_success_of_a_process_is_its_own() -> None:
    text = "[rank0]: Training completed\n"
    assert [later_than(text, stream=name).has_success for name in ("0", "1", None)] == [True, False, False]
    assert later_than("Training completed\n", stream="1").has_success


def test_advice_is_no_restart() -> None:
    for line in (
        "consider restarting the job",
        "If it fails, try restarting the workers",
        "Restarting dataloader workers",
    ):
        assert later_than(line + "\n").restarts_left == 0
    assert later_than("Restarting the workers\n").restarts_left == 1


def test_restarts_are_counted() -> None:
    text = "step 1\nW Worker group FAILED. 2/3 attempts left; will restart worker group\nstep 2\nstep 4\n"
    before, after = later_than(text, 1), later_than(text, 3)
    assert (before.num_restarts, before.restarts_left, before.steps_since_restart) == (0, 1, 2)
    assert (after.num_restarts, after.restarts_left) == (1, 0)
    # success of an earlier attempt says nothing about the last one
    assert not later_than("Training completed\nRestarting the workers\n").has_success


def pieces(text: str, size: int) -> EventReader:
    """A reader that got the text in pieces."""
    reader = EventReader()
    for begin in range(0, len(text), size):
        reader.look(text[begin : begin + size])
    return reader


@pytest.mark.parametrize("size", [7, 100, 1 << 20])
def test_pieces_of_any_size_give_the_same_steps(size: int) -> None:
    text = "step 1\n" + ERROR + "".join(f"step {number} of many\n" for number in range(40)) + "Training completed\n"
    [event] = pieces(text, size).events()
    assert (event.later.all_steps, event.later.has_success) == (40, True)


def test_a_long_log_is_read_by_samples_only_and_its_end_is_known() -> None:
    text = ERROR + "".join(f"step {number} {'x' * 100}\n" for number in range(100_000)) + "Training completed\n"
    [event] = pieces(text, 1 << 18).events()
    assert event.later.all_steps >= 400 and event.later.rise >= 98_000 and event.later.has_success


def test_the_end_of_a_long_log_with_a_known_word_in_each_line_is_known() -> None:
    for last in ("Training completed\n", "7: Training completed\n"):  # once only, so 7 is no rank
        reader = pieces(ERROR + "no oom at all\n" * 100_000 + last, 1 << 16)
        reader.look("")
        [event] = reader.events()
        assert event.later.has_success


def test_the_lines_around_a_late_message_of_a_long_log_are_read() -> None:
    filler = ("nothing of interest " + "-" * 1000 + "\n") * 2_000  # how much is read is a number of characters
    lines = "step 0\nTraining completed\n" + ERROR + "Restarting the workers\nstep 1\nstep 4\n" + filler
    for text in (filler + lines, "Failures: none\n" + filler + lines, ERROR.replace("bad", "x") + filler + lines):
        event = pieces(text, 1 << 18).events()[-1]
        later = event.later
        assert (later.after_success, later.restarts_left, later.steps_since_restart, later.own_steps) == (True, 1, 2, 2)


def test_an_equal_message_after_further_steps_is_kept() -> None:
    text = ERROR + "step 1\n" + ERROR + "step 2\n" + ERROR + ERROR
    assert [event.line for event in pieces(text, 100).events()] == [1, 5]
    assert [event.line for event in pieces(ERROR * 4, 100).events()] == [1]


def test_the_lines_after_each_message_are_read_one_by_one() -> None:
    reader = ProgressReader()
    assert reader.wants(1 << 18)
    assert not reader.wants(1)  # far from a message, only samples are read
    reader.event_found(1, None)
    assert reader.wants(1 << 18)
    assert not reader.wants(1)


def test_a_damaged_file_with_many_restarts_fills_no_memory() -> None:
    reader = ProgressReader()
    for number in range(1, 20_001, 2):
        reader.read(number, "restarting worker group", None)
        reader.read(number + 1, f"step {number}", None)
    assert reader.num_restarts == 1_024
    assert reader.num_marks == 10_000
    (series,) = reader._series.values()
    assert len(series) < 1_200
