"""Lines lose what launchers, terminals and editors added, and nothing else; memory does not grow with the text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.logs.foreign import Line
from bench.logs.readers._lines import LONGEST, clean, lines, results

ROW = "4096          1024     float     sum      -1    31.07    0.13    0.23       0    30.55    0.13    0.23       0"
PREFIXES = (
    "[1,0]<stdout>:",
    "[1,12]<stderr>: ",
    "[1, 0]<stdout>:   ",
    "[1,0]:",  # <stdout> lost in markdown
    "[1,0]&lt;stdout&gt;:",
    "[rank,n]<stdout>:",
    "[prterun-node7-4711@1,3]<stdout>: ",
    "[0] ",
    "0: ",
    " 0: ",
    "  17: ",
    "[pod/bench-worker-0/main] ",
    "(head, rank=0, pid=4711) ",
    "(RayWorker pid=99, ip=10.1.2.3) ",
    "2026-01-02T03:04:05.123456789Z ",
    "2026-01-02T03:04:05Z stdout F ",
    "2026-01-02T03:04:05.5+01:00 ",
    "2026-01-02 03:04:05,678 ",
    "[2026-01-02 03:04:05] ",
    "03:04:05 ",
    "Jan  2 03:04:05 node7 slurmd[311]: ",
    "node7: ",
    "bench-worker-0  | ",
    "> ",
    "\t    ",
    "\xa0\xa0",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "text", [ROW, "# Out of bounds values : 0 OK", "0             0     float     sum      -1    31.07"]
)
def test_a_prefix_comes_off_and_the_line_stays(prefix: str, text: str) -> None:
    assert clean(prefix + text) == text


def test_a_label_before_each_piece_of_a_line_comes_off() -> None:
    """Hydra prints a line like this if its program writes it in three parts."""
    text = "[3]   1048576  262144  float  sum  -1[3]  31.07  33.75  50.62  0[3]  30.55  34.32  51.48  0"
    assert clean(text).split() == text.replace("[3]", " ").split()
    talk = "node7:4711:4712 [3] NCCL INFO Channel 00/02 : 0[3] -> 1[4]"
    assert clean("[3] " + talk.replace("0[3] ", "0[5] ")) == talk.replace("0[3] ", "0[5] ")
    assert clean("[3] node7:4711:4712 [3] NCCL INFO ready") == "node7:4711:4712 [3] NCCL INFO ready"
    assert clean(talk) == talk


@pytest.mark.parametrize(("outer", "inner"), list(itertools.permutations(PREFIXES[:12] + PREFIXES[14:16], 2)))
def test_two_prefixes_come_off(outer: str, inner: str) -> None:
    assert clean(outer + inner + ROW) == ROW


@pytest.mark.parametrize(
    "text",
    [
        "0             0     float     sum      -1    31.07    0.00    0.00       0",
        "8 2 float sum -1 31.07 0.00 0.00 0 30.55 0.00 0.00 N/A",
        "83.33  100.66  100.66      0",
        "-1 12.00 3.00 3.00 0",
        "node7:4711:4711 [0] NCCL INFO Channel 00/02 : 0 1",
        "node7: Test NCCL failure all_reduce.cu:44 'unhandled'",
        "[1622510346.876958] [node7:144167:0] something else",
        "0.53 1.5 2.5",
        "1: 2",
        "Bandwidth: 12.5",
        "...",
    ],
)
def test_no_number_of_a_line_is_taken_for_a_label(text: str) -> None:
    assert clean(text).split()[-1] == text.split()[-1]
    if text != "1: 2":
        assert clean(text) == text


def test_colours_come_off() -> None:
    assert clean("\x1b[1;32m[1,0]<stdout>:\x1b[0m" + ROW.replace("float", "\x1b[31mfloat\x1b[39m") + "\x1b[K") == ROW


def test_line_numbers_are_those_of_the_file() -> None:
    text = b"\xef\xbb\xbffirst\r\n\r\nthird\nto be\rcontinued\n[1,0]<stdout>:a[1,1]<stderr>:b\n\0last\0"
    assert list(lines([text])) == [
        Line(1, "first"),
        Line(2, ""),
        Line(3, "third"),
        Line(4, "to be"),
        Line(4, "continued"),
        Line(5, "a"),
        Line(5, "b"),
        Line(6, "last"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_of_any_encoding_is_read(encoding: str) -> None:
    assert [line.text for line in lines([f"# a\n{ROW}\n".encode(encoding)])][:2] == ["# a", ROW]


@given(st.binary(max_size=300), st.integers(1, 7))
def test_where_chunks_end_does_not_matter(text: bytes, size: int) -> None:
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(lines(chunks)) == list(lines([text]))


def test_text_and_bytes_are_the_same() -> None:
    assert list(lines(["a\nb", "c\n"])) == list(lines([b"a\nbc\n"])) == [Line(1, "a"), Line(2, "bc")]


def test_a_gigantic_line_keeps_its_beginning_and_the_next_lines_their_numbers() -> None:
    chunks = itertools.chain([b"x"], itertools.repeat(b"y" * 65536, 64), [b"\nnext"])
    first, second = lines(chunks)
    assert len(first.text) == LONGEST
    assert second == Line(2, "next")


def test_a_gigantic_document_is_kept_whole() -> None:
    text = '{"a": "' + "b" * (LONGEST + 10) + '"}'
    assert [line.text for line in lines([text])] == [text]


def test_text_up_to_a_carriage_return_is_yielded_before_it_grows() -> None:
    bar = "progress 50%\r" * 20_000
    found = list(lines([bar, bar, bar, bar, bar, bar, "8 2\nend"]))
    assert found[-2:] == [Line(1, "8 2"), Line(2, "end")]
    assert len(found) > 100_000


def test_the_text_is_never_held() -> None:
    held = 0

    def chunks() -> Iterator[bytes]:
        nonlocal held
        for _ in range(200):
            held += 1
            yield b"a line of a log\n" * 10

    for seen, _line in enumerate(lines(chunks()), start=1):
        assert held <= seen // 10 + 2  # at most a chunk ahead
    assert held == 200


@given(st.text(max_size=200))
def test_nothing_makes_it_raise(text: str) -> None:
    found = list(lines([text]))
    assert sum(len(line.text) for line in found) <= len(text)


# ---------------------------------------------------------------------------------------------------- without messages

MESSAGE = "node-7:4711:4799 [3] NCCL INFO Channel 03/0 : 3[3] -> 4[4] via P2P/CUMEM"
SAID = (
    "node-7:4711:4799 [3] NCCL INFO RCCL version 2.22.3",
    "40.1 node-7:4711:4799 [3] NCCL INFO Channel 03/0",  # a figure before it
    f"{MESSAGE}\x1b[0m",
    "node-7: Test NCCL failure all_reduce.cu:44",
)


@pytest.mark.parametrize("prefix", ["", "[1,12]<stdout>:", "[job@1,3]<stderr>:", "12: "])
def test_messages_of_nccl_are_left_out_and_lines_keep_their_numbers(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (ROW, MESSAGE, MESSAGE, "", *SAID, MESSAGE, ROW, MESSAGE))
    assert [line.number for line in results([text])] == [1, 4, 5, 6, 7, 8, 10]
    assert [line for line in lines([text]) if line.text != MESSAGE or line.number == 7] == list(results([text]))


def test_a_row_that_is_glued_to_a_message_is_kept() -> None:
    assert [line.text for line in results([f"a\n{MESSAGE}[1,0]<stdout>:{ROW}\n{MESSAGE}\rb\nc"])][2::2] == [ROW, "b"]


@given(
    st.lists(st.sampled_from([ROW, MESSAGE, "", "# a", *SAID, "x\ry", f"[1,2]<stdout>:{MESSAGE}"])), st.integers(1, 300)
)
def test_leaving_messages_out_changes_no_other_line_wherever_chunks_end(texts: list[str], size: int) -> None:
    whole = "\n".join(texts)
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    kept = [line for line in lines([whole]) if line.text != MESSAGE]
    assert [line for line in results(chunks) if line.text != MESSAGE] == kept


def test_look_gets_the_text_of_the_next_lines() -> None:
    seen: list[str] = []
    came = [(line.text, len(seen)) for line in lines(["a\nb\n", "c\n"], seen.append)]
    assert came == [("a", 1), ("b", 1), ("c", 2)]
    assert "".join(seen) == "a\nb\nc\n"
