"""The benchmarks: their arithmetic and reports, the text of long sentences, and a tiny run of each in this process."""

import argparse
import io
import json
import sys
from types import SimpleNamespace

import helpers
import pytest
import torch

sys.path.insert(0, str(helpers.ROOT / "benchmarks"))

import averaging
import corpus
import decoding
import deploy
import floor
import profiling
import side_by_side
import training
import weights
import worker
from sides import CRITERION, STOCK, Side

TINY = ["--size", "tiny", "--threads", "1", "--warmup", "1"]


@pytest.fixture(autouse=True)
def known_speed(monkeypatch):
    """Peaks that are not measured, which would take a second."""
    monkeypatch.setattr(floor, "peaks", lambda device, precision: {"flops": 1e11, "bytes": 1e10})


def test_summary_holds_the_median_and_the_quartiles():
    assert side_by_side.summary([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert side_by_side.summary([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0}
    with pytest.raises(ValueError, match="no value"):
        side_by_side.summary([])


def test_ratio_is_taken_round_by_round():
    # a machine that is ten times slower in one round slows both sides down
    assert side_by_side.ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert side_by_side.ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])["median"] == 2.0
    with pytest.raises(ValueError, match="2 rounds of one side and 1"):
        side_by_side.ratio([1.0, 2.0], [1.0])


def test_sides_alternate_and_the_warm_up_is_not_timed():
    calls = []
    sides = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = side_by_side.alternate(sides, rounds=3, warmup=2)
    assert "".join(calls) == "ab" * 5
    assert [len(seconds[name]) for name in "ab"] == [3, 3]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""), (True, "yes"), (1234567, "1,234,567"), (1.23456, "1.235"), (1234.56, "1,235"), (0.0, "0"),
        (0.00012345, "0.000123"), (12.345, "12.35"), ("a|b", "a\\|b"), (float("inf"), "inf"),
        ({"median": 2.0, "low": 1.0, "high": 3.0}, "2.000 (1.000–3.000)"),
    ],
)  # fmt: skip
def test_cells_are_short(value, shown):
    assert side_by_side.show(value) == shown


def test_table_takes_all_keys_or_the_columns_asked_for():
    rows = [{"side": "stock", "n": 1}, {"side": "ours", "more_words": 2.5}]
    assert side_by_side.table(rows).splitlines() == [
        "| side | n | more words |", "| --- | ---: | ---: |", "| stock | 1 |  |", "| ours |  | 2.500 |",
    ]  # fmt: skip
    assert side_by_side.table(rows, {"n": "number"}).splitlines()[0] == "| number |"


def test_report_is_written_as_markdown_and_as_json(tmp_path, capsys):
    rows = [{"side": "stock", "seconds": 0.123456789}]
    stem = tmp_path / "new" / "report"
    side_by_side.write_report(stem, "Title", "python x", rows, {"cpu": "fast", "gpu": None}, ["the floor"])
    content = json.loads((tmp_path / "new" / "report.json").read_text())
    assert content["rows"] == rows and content["command"] == "python x" and content["machine"]["cpu"] == "fast"
    text = (tmp_path / "new" / "report.md").read_text()
    assert "# Title" in text and "| stock | 0.1235 |" in text and "gpu" not in text and text.endswith("the floor\n")
    assert "| stock | 0.1235 |" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--warmup", "-1"], ["--rounds", "x"], ["--device", "tpu"]])
def test_a_wrong_option_is_one_line(wrong, capsys):
    parser = side_by_side.Parser(prog="bench")
    side_by_side.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(wrong)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"bench: error: argument {wrong[0]}")


def test_an_unwritable_folder_is_found_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    parser = side_by_side.Parser(prog="bench")
    side_by_side.add_options(parser)
    with pytest.raises(SystemExit):
        side_by_side.check_device(parser, parser.parse_args(["--out", str(tmp_path / "file" / "out")]))
    assert "cannot write into the folder" in capsys.readouterr().err


def test_machine_is_described():
    about = side_by_side.machine()
    assert about["cores"] >= 1 and about["memory_gb"] > 0 and "fairseq" in about["fairseq"]
    assert about["date"].endswith("UTC") and about["commit"]


def test_long_pairs_are_cut_to_the_length_of_both_sides():
    pairs = [(["a"] * 3, ["x"] * 5), (["b"] * 3, ["y"] * 1), (["c"] * 6, ["z"] * 9), (["d"], ["w"])]
    joined = corpus.join_pairs(pairs, 6, 9)
    assert joined == [(list("aaabbb"), list("xxxxxy")), (list("cccccc"), list("zzzzzz"))]
    assert corpus.join_pairs(pairs, 6, 1) == joined[:1]
    assert corpus.join_pairs([], 6, 1) == []


def test_long_text_has_the_promised_tokens_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONG_PAIRS", 2)
    monkeypatch.setattr(corpus, "LONG_TOKENS", 5)
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("a b c\n" * 4)
    corpus.write_long(tmp_path, tmp_path / "long")
    assert (tmp_path / "long" / "train.de").read_text() == "a b c a\n" * 2
    monkeypatch.setattr(corpus, "LONG_PAIRS", 3)
    with pytest.raises(SystemExit, match="text for 2 long pairs only, 3 are needed"):
        corpus.write_long(tmp_path, tmp_path / "long")


def test_sentences_are_spread_evenly():
    assert corpus.spread(range(10), 5) == [1, 3, 5, 7, 9]
    assert corpus.spread(range(3), 5) == [0, 1, 2]


def test_sides_are_read_and_refused(tmp_path):
    assert Side.parse("roformer").user_dir == helpers.USER_DIR
    assert Side.parse(STOCK).user_dir is None and "--user-dir" not in Side.parse(STOCK).flags("data", "tiny", "cpu")
    other = Side.parse(f"baseline@{helpers.ROOT}")
    assert other.name == f"baseline@{helpers.ROOT}" and other.user_dir == helpers.USER_DIR
    for wrong in ("nosuch", "stock@x", "", f"roformer@{tmp_path}", "roformer@"):
        with pytest.raises(argparse.ArgumentTypeError):
            Side.parse(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="always measured"):
        training.known(STOCK)


def test_stock_is_refused_where_the_package_was_imported():
    package = {"fairseq_rope": SimpleNamespace(__file__=f"{helpers.USER_DIR}/__init__.py")}
    worker.check_origin(["data"], {})
    worker.check_origin(["--user-dir", helpers.USER_DIR], package)
    for flags, modules in ((["data"], package), (["--user-dir", "elsewhere"], package), (["--user-dir", "x"], {})):
        with pytest.raises(RuntimeError, match="should come from"):
            worker.check_origin(flags, modules)


def test_worker_answers_each_command_and_survives_an_error(monkeypatch):
    monkeypatch.setitem(worker.KINDS, "fake", lambda flags: SimpleNamespace(double=lambda x: 2 * x))
    monkeypatch.setattr(worker, "check_origin", lambda flags: None)
    opening = {"do": "open", "kind": "fake", "options": {"flags": []}, "threads": 1}
    asked = [opening, {"do": "double", "args": ["no"]}, {"do": "nosuch", "args": []}, {"do": "double", "args": [4]}]
    answers = io.StringIO()
    worker.serve([json.dumps(command) for command in asked], answers)
    opened, text, wrong, eight = map(json.loads, answers.getvalue().splitlines())
    assert (opened, text, eight) == ({"result": None}, {"result": "nono"}, {"result": 8})
    assert "nosuch" in wrong["error"]


def test_floor_counts_operations():
    sizes = {
        "encoder": 10, "decoder": 20, "cross": 4, "output": 6, "total": 50, "width": 2,
        "encoder_layers": 1, "decoder_layers": 1,
    }  # fmt: skip
    operations, moved = floor.training(sizes, [(3, 2)])
    # weights: (10 + 4) x 3 source tokens, (16 + 6) x 2 target tokens; pairs of positions: 3x3 + 2x2/2 + 3x2
    assert operations == 6 * (14 * 3 + 22 * 2) + 12 * 2 * (9 + 2 + 6)
    assert moved == 36 * 50
    assert floor.decoding(sizes, sources=3, steps=5, rows=20, attended=100) == (
        2 * 14 * 3 + 2 * 22 * 20 + 4 * 2 * 100,
        4 * (22 * 5 + 14),
    )
    assert floor.seconds(10, 100, {"flops": 10, "bytes": 20}) == 5


def test_operators_are_grouped_in_words():
    assert profiling.operator_group("aten::addmm") == "GEMM"
    assert profiling.operator_group("aten::_softmax_backward_data") == "attention"
    assert profiling.operator_group("aten::nosuch") == profiling.OTHER
    search = SimpleNamespace(name="region: search", cpu_parent=None)
    decoder = SimpleNamespace(name="region: decoder", cpu_parent=search)
    assert profiling.group_of(SimpleNamespace(name="aten::mm", cpu_parent=decoder)) == "GEMM"
    assert profiling.group_of(SimpleNamespace(name="aten::topk", cpu_parent=search)) == "search"
    assert profiling.group_of(decoder) == "decoder: Python"


def test_profile_tells_operators_and_regions_apart():
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(layer.parameters())

    class Search:
        def __call__(self):
            return self.step()

        def step(self):
            return torch.rand(100_000).topk(1000)

    search = Search()

    def update():
        layer(torch.rand(512, 64)).sum().backward()
        optimizer.step()
        search()

    found = profiling.measure(update, [(search, "step", "search")])
    assert {"GEMM", "optimizer", "search", "Python and rest"} <= set(found["groups"])
    assert sum(found["groups"].values()) == pytest.approx(found["seconds"])
    assert "step" not in vars(search)  # unmarked again
    lines = profiling.rows({"stock": found, "ours": {**found, "groups": {}}})
    assert [line["stock"] for line in lines[-2:]] == [found["seconds"], found["page_faults"]]
    assert all(line.get("ours") is None for line in lines[:-2])


def test_training_benchmark_runs(digits, tmp_path):
    args = training.parser().parse_args([
        *TINY, "--families", "roformer", "--settings", "multi30k", "--criterion", CRITERION, "--rounds", "2",
        "--max-tokens", "200", "--no-profile", "--out", str(tmp_path),
    ])  # fmt: skip
    folders = corpus.Corpus(digits, digits)
    rows = training.run(args, folders, worker.Local)
    assert [row["side"] for row in rows] == [STOCK, "roformer"]
    assert rows[0]["speed_to_stock"]["median"] == 1 and rows[0]["peak_to_stock"] == 1
    assert all(row["words_a_second"] > 0 and row["times_the_floor"] > 0 for row in rows)
    assert "Floor of an update" in (tmp_path / "training.md").read_text()

    def none_is_started(*_):
        raise AssertionError("--resume measured again")

    again = argparse.Namespace(**{**vars(args), "resume": True})
    assert training.run(again, folders, none_is_started) == rows
    with pytest.raises(SystemExit, match="of other options"):
        training.run(argparse.Namespace(**{**vars(again), "seed": 2}), folders, none_is_started)
    with pytest.raises(SystemExit, match=r"only .* batches of 200 tokens, 1001 are needed"):
        training.choose_batches(corpus.Text(digits, "train"), 200, 1001, 1)


def test_decoding_benchmark_runs(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "run_training", lambda flags: helpers.run("fairseq-train", *flags))
    monkeypatch.setattr(corpus, "LONG_TOKENS", 7)
    args = decoding.parser().parse_args([
        *TINY, "--families", "baseline", "admin", "--settings", "32", "long", "--rounds", "1",
        "--sentences", "3", "--train-updates", "2", "--adapt-updates", "1", "--max-len-b", "4",
        "--work", str(tmp_path), "--out", str(tmp_path),
    ])  # fmt: skip
    rows = decoding.run(args, corpus.Corpus(digits, digits), worker.Local)
    sides = [STOCK, "baseline", "admin"]
    assert [(row["setting"], row["side"]) for row in rows] == [(one, side) for one in ("32", "long") for side in sides]
    by_name = {(row["setting"], row["side"]): row for row in rows}
    assert by_name["32", "baseline"]["best_the_same"] == "3 of 3"
    assert by_name["32", "admin"]["same_as"] is None
    assert by_name["long", STOCK]["tokens_a_hypothesis"] == 7
    text = (tmp_path / "decoding.md").read_text()
    assert "steps of stock's decoder" in text and "| search |" in text and "| decoder: Python |" in text
    # what has been trained is there for the next run
    monkeypatch.setattr(weights, "run_training", lambda flags: pytest.fail("trained again"))
    assert weights.train_base(args, corpus.Corpus(digits, digits)).exists()


def test_hypotheses_are_compared_with_their_peers():
    assert decoding.peer_of("baseline", {}) == STOCK
    assert decoding.peer_of("roformer@path", {"roformer"}) == "roformer"
    assert decoding.peer_of("roformer@path", {}) is None and decoding.peer_of("roformer", {STOCK}) is None
    mine, other = {1: [[4, 2], [5, 2]], 2: [[6, 2]]}, {1: [[4, 2], [7, 2]], 2: [[6, 2]]}
    assert decoding.agreeing(mine, other, 1) == 2 and decoding.agreeing(mine, other, None) == 1


def test_averaging_benchmark_runs(digits, tmp_path):
    args = averaging.parser().parse_args(
        [*TINY, "--counts", "2", "--rounds", "1", "--work", str(tmp_path), "--out", str(tmp_path)]
    )

    def in_this_process(way, paths, output, threads):
        return averaging.average_once(way, paths, output)

    rows = averaging.run(args, digits, worker.Local, in_this_process)
    assert [row["checkpoints"] for row in rows] == [2, 2] and rows[0]["speed_to_usual"]["median"] == 1
    assert not (tmp_path / "averaging-tiny").exists()
    assert "have to be read" in (tmp_path / "averaging.md").read_text()


def test_deploy_benchmark_runs(digits, tmp_path, monkeypatch):
    """Weights of decoding.py beside stock, then its checkpoint as a user's own, and the grid."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(weights, "run_training", lambda flags: helpers.run("fairseq-train", *flags))
    raw = helpers.write_digits(tmp_path / "raw") / "test.de"
    limits = [*TINY, "--sentences", "6", "--rounds", "1", "--max-len-b", "4", "--no-subwords", "--tokenizer", "none"]
    limits += ["--work", str(tmp_path), "--out", str(tmp_path)]
    args = deploy.parser().parse_args([*limits, "--train-updates", "2", "--references", str(raw)])
    rows = deploy.run(args, corpus.Corpus(digits, digits), worker.Local)
    assert [row["side"] for row in rows] == [STOCK, "baseline", "CTranslate2 float32", "CTranslate2 int8"]
    assert [row["same"] for row in rows[:3]] == ["6 of 6", None, "6 of 6"]
    assert [row["bleu_difference"] for row in rows[:3]] == [0, None, 0] and rows[1]["bleu"] is not None
    assert rows[1]["speed_to_generate"]["median"] == 1 and rows[0]["speed_to_stock"]["median"] == 1
    assert rows[3]["model_mb"] < rows[2]["model_mb"] / 2
    assert "baseline exported" in (tmp_path / "deploy.md").read_text()
    assert not list(tmp_path.glob("deploy-*"))  # the exported models are gone

    checkpoint = [
        "--checkpoint",
        str(tmp_path / "ck" / "baseline_tiny" / "checkpoint_last.pt"),
        "--data-bin",
        str(digits),
    ]
    own = deploy.parser().parse_args([*limits, *checkpoint, "--quantizations", "float32", "--settings", "1"])
    rows = deploy.run(own, None, worker.Local)
    assert [(row["side"], row["rounds"], row["same"]) for row in rows] == [
        ("baseline_tiny", 6, None), ("CTranslate2 float32", 6, "6 of 6"),
    ]  # fmt: skip
    assert rows[1]["bleu"] is None

    grid = [*limits, *checkpoint, "--grid", "--grid-tokens", "20", "80", "--quantizations", "int8", "--threads", "2"]
    rows = deploy.run(deploy.parser().parse_args(grid), None, worker.Local)
    shape = [(row["batches_at_a_time"], row["threads_each"], row["tokens_a_batch"]) for row in rows]
    assert shape == [(1, 2, 20), (1, 2, 80), (2, 1, 20), (2, 1, 80)]
    assert min(row["speed_to_fastest"]["median"] for row in rows) > 0

    other = argparse.Namespace(**{**vars(args), "references": tmp_path / "raw" / "train.de"})
    with pytest.raises(SystemExit, match="has 200 lines, and the set test 20 sentences"):
        deploy.run(other, corpus.Corpus(digits, digits), worker.Local)
    other = argparse.Namespace(**{**vars(own), "split": "nosuch"})
    with pytest.raises(SystemExit, match="there is no set nosuch from en to de"):
        deploy.run(other, None, worker.Local)


@pytest.mark.parametrize("wrong", [["--checkpoint", "x.pt"], ["--data-bin", "x"], ["--precision", "bf16"]])
def test_deploy_benchmark_refuses(wrong, tmp_path, capsys):
    with pytest.raises(SystemExit):
        deploy.main([*wrong, "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("--checkpoint needs its data folder" in error or "on the CPU" in error)


def test_references_lie_beside_the_data_folder(tmp_path):
    data, raw = tmp_path / "data-bin", tmp_path / "raw"
    data.mkdir()
    raw.mkdir()
    assert deploy.references(data, "test", "de") is None
    (raw / "test_2016.de").write_text("")
    assert deploy.references(data, "test", "de") == raw / "test_2016.de"
    assert deploy.references(data, "test1", "de") is None
    (raw / "test.de").write_text("")
    assert deploy.references(data, "test", "de") == raw / "test.de"
