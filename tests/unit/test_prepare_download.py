"""Downloading: places in order, resuming from servers of every temper, checks, one-line errors."""

import contextlib
import errno
import hashlib
import http.server
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import helpers
import pytest

from fairseq_rope.errors import UserError
from fairseq_rope.prepare import progress, transfer
from fairseq_rope.prepare.download import Archive, fetch

BODY = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.body`` as ``server.rules`` say; one rule a request, the last one for all further requests.

    Rules: ``status`` (an error instead), ``ranges`` (default True), ``drop`` (bytes of the body until the connection
    ends), ``reset`` (ends it with a reset), ``length`` (Content-Length, None for none), ``chunked``, ``headers``
    (replaces the validators), ``shift`` (a 206 answer that begins so many bytes late), ``ignore_if_range``, ``body``,
    ``slow`` (seconds between small blocks), ``wait`` (seconds before the answer).
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_CONNECT(self):
        self.server.seen.append(("CONNECT", self.path, None))
        self.send_error(501)

    def do_GET(self):
        server = self.server
        rule = server.rules.pop(0) if len(server.rules) > 1 else server.rules[0]
        server.seen.append(("GET", self.path, self.headers.get("Range")))
        self.close_connection = True
        time.sleep(rule.get("wait", 0))
        if rule.get("status", 200) != 200:
            self.send_error(rule["status"])
            return
        body, headers = rule.get("body", server.body), rule.get("headers", {"ETag": '"one"'})
        start, validators = 0, set(headers.values())
        wanted = self.headers.get("Range")
        same = rule.get("ignore_if_range") or self.headers.get("If-Range") in validators
        if wanted and rule.get("ranges", True) and same:
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + rule.get("shift", 0)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        rest = body[start:]
        if rule.get("chunked"):
            self.send_header("Transfer-Encoding", "chunked")
        elif (length := rule.get("length", len(rest))) is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        sent = rest[: rule["drop"]] if "drop" in rule else rest
        if rule.get("chunked"):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent) + (b"" if "drop" in rule else b"0\r\n\r\n"))
        elif "slow" in rule:
            with contextlib.suppress(ConnectionError):
                for i in range(0, len(sent), 10_000):
                    self.wfile.write(sent[i : i + 10_000])
                    time.sleep(rule["slow"])
        else:
            self.wfile.write(sent)
        if rule.get("reset"):
            self.wfile.flush()
            time.sleep(0.05)  # let what was sent arrive: a reset overtakes it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.wfile = io.BytesIO()


@pytest.fixture
def serve(monkeypatch):
    """A function that starts a loopback server with the given rules; all are stopped at the end."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(transfer, "PAUSES", (0, 0, 0))
    running = []

    def start(*rules, body=BODY):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.rules, server.body, server.seen = list(rules) or [{}], body, []
        server.url = f"http://127.0.0.1:{server.server_port}/a/data.tgz"
        server.at = server.url.removesuffix("/a/data.tgz")
        server.ranges = lambda: [seen[2] for seen in server.seen]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def get(server, folder, progress=False, **known):
    options = {name: known.pop(name) for name in ("mirrors", "strict") if name in known}
    return fetch(Archive(server.url, **known), folder, progress=progress, **options)


def check_complete(folder, fetched, body=BODY):
    assert fetched.path.read_bytes() == body
    assert (fetched.size, fetched.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert sorted(path.name for path in folder.iterdir()) == ["data.tgz", "data.tgz.json"]


# Plain downloads


def test_names():
    archive = Archive("http://host.example/x/training-a.tgz")
    assert (archive.name, archive.host_path) == ("training-a.tgz", "host.example/x/training-a.tgz")
    for url in ("ftp://host.example/a", "http://host.example", "http://host.example/"):
        with pytest.raises(ValueError, match="not the http address of a file"):
            Archive(url)


def test_download_checks_and_is_found_again_without_the_server(serve, tmp_path):
    server = serve()
    first = get(server, tmp_path, size=len(BODY), sha256=SHA256, md5=MD5)
    check_complete(tmp_path, first)
    assert first.published is True and first.source == server.url and not first.difference
    assert get(server, tmp_path, size=len(BODY), sha256=SHA256, md5=MD5) == first
    assert len(server.seen) == 1
    assert get(server, tmp_path).published is None  # nothing known to compare


def test_progress_is_readable_without_a_terminal(serve, tmp_path, capsys):
    get(serve({"drop": 100_000}, {}), tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "\r" not in err
    lines = err.splitlines()
    assert lines[0].startswith("data.tgz:   0%") and "100000 of 300000 bytes; trying again in 0 s" in err
    assert any(line.startswith("data.tgz:  33%") for line in lines)
    assert sum("100%" in line for line in lines) == 2 and len(lines) == 7  # 2 a transfer, 1 note, 2 the check


def test_a_long_bar_prints_a_line_every_ten_seconds_at_most(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    bar = progress.bar("data", 1000, "bytes")
    bar._time = lambda: clock.now
    bar.start_t = bar.last_print_t = 0.0
    for _ in range(100):
        clock.now += 1
        bar.update(10)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert 10 <= len(lines) <= 12 and "100%" in lines[-1] and "<" in lines[5]  # elapsed<left


@pytest.mark.parametrize(
    "rule",
    [{"chunked": True}, {"length": None}, {"chunked": True, "headers": {"Content-Length": "5"}}],
    ids=["chunked", "no length", "chunked and a length"],
)
def test_unknown_length(serve, tmp_path, rule):
    check_complete(tmp_path, get(serve(rule), tmp_path, sha256=SHA256))


# Connections that break


def test_broken_connections_are_resumed(serve, tmp_path):
    server = serve({"drop": 70_000}, {"drop": 1, "reset": True}, {"drop": 50_000, "reset": True}, {})
    check_complete(tmp_path, get(server, tmp_path, sha256=SHA256))
    assert server.ranges() == [None, "bytes=70000-", "bytes=70001-", "bytes=120001-"]


def test_tries_go_on_as_long_as_there_is_progress(serve, tmp_path):
    server = serve(*[{"drop": 20_000}] * 14, {})
    check_complete(tmp_path, get(server, tmp_path, sha256=SHA256))
    assert len(server.seen) == 15 > len(transfer.PAUSES) + 1


def test_tries_end_without_progress_and_the_next_run_resumes(serve, tmp_path):
    server = serve({"drop": 1000}, {"drop": 0})
    with pytest.raises(UserError, match=r"connection closed after 1000 of 300000 bytes \(4 tries\)"):
        get(server, tmp_path)
    assert (tmp_path / "data.tgz.part").read_bytes() == BODY[:1000] and not (tmp_path / "data.tgz").exists()
    server.rules = [{}]
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges()[-1] == "bytes=1000-"


def test_a_server_without_ranges_starts_again(serve, tmp_path):
    server = serve({"drop": 70_000, "ranges": False}, {"ranges": False})
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges() == [None, "bytes=70000-"]


def test_a_server_without_ranges_that_always_drops_is_given_up(serve, tmp_path):
    server = serve({"drop": 70_000, "ranges": False})
    with pytest.raises(UserError, match="connection closed after 70000"):
        get(server, tmp_path)
    assert len(server.seen) == 1 + len(transfer.PAUSES)


@pytest.mark.parametrize(
    "rule",
    [
        {"headers": {"ETag": '"two"'}},
        {"headers": {"ETag": '"two"'}, "ignore_if_range": True},
        {"headers": {"ETag": '"one"'}, "shift": 5},
        {"headers": {"ETag": '"one"'}, "body": BODY + b"more"},
        {"status": 416},
    ],
    ids=["changed", "changed, If-Range ignored", "another range", "another size", "416"],
)
def test_what_cannot_be_continued_starts_again(serve, tmp_path, rule):
    other = rule.get("body", b"another version" * 20_000)
    server = serve({"drop": 70_000, "body": BODY}, rule, {}, body=other)
    check_complete(tmp_path, get(server, tmp_path), other)
    assert server.ranges()[:2] == [None, "bytes=70000-"]


@pytest.mark.parametrize(
    ("headers", "resumes"),
    [({"Last-Modified": "Tue, 01 Jan 2013 00:00:00 GMT"}, True), ({"ETag": 'W/"weak"'}, False), ({}, False)],
    ids=["date", "weak ETag", "nothing"],
)
def test_only_what_is_surely_the_same_file_is_resumed(serve, tmp_path, headers, resumes):
    server = serve({"drop": 70_000, "headers": headers}, {"headers": headers})
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges()[1] == ("bytes=70000-" if resumes else None)


def test_chunked_answers_that_break_off(serve, tmp_path):
    server = serve({"chunked": True, "drop": 70_000}, {"chunked": True})
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges() == [None, "bytes=70000-"]


def test_content_length_that_lies(serve, tmp_path):
    with pytest.raises(UserError, match="connection closed after 300000 of 300100 bytes"):
        get(serve({"length": len(BODY) + 100}), tmp_path)
    # too short: what the server declared is the file, and the digest tells
    with pytest.raises(UserError, match="wrong SHA-256"):
        get(serve({"length": 100}), tmp_path / "b", sha256=SHA256)
    assert list((tmp_path / "b").iterdir()) == []


def test_passing_server_errors_are_tried_again(serve, tmp_path):
    server = serve({"status": 500}, {"status": 503}, {})
    check_complete(tmp_path, get(server, tmp_path))
    with pytest.raises(UserError, match=r"HTTP 502 Bad Gateway \(4 tries\)"):
        get(serve({"status": 502}), tmp_path / "b")


def test_timeout(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT", 0.15)
    with pytest.raises(UserError, match=r"timed out \(0.15 s\)\)"):
        get(serve({"wait": 0.5}), tmp_path)
    stalling = serve({"slow": 0.5}, {})
    check_complete(tmp_path, get(stalling, tmp_path))
    assert stalling.ranges() == [None, "bytes=10000-"]


def test_part_of_another_source_is_not_resumed(serve, tmp_path):
    first, second = serve({"drop": 1000}, {"drop": 0}), serve()
    with pytest.raises(UserError):
        get(first, tmp_path)
    check_complete(tmp_path, get(second, tmp_path))
    assert second.ranges() == [None]


def test_killed_between_the_note_and_the_first_byte(serve, tmp_path, monkeypatch):
    first, second = serve({"drop": 1000}, {"drop": 0}), serve(body=b"other" * 9000)
    with pytest.raises(UserError):
        get(first, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_receive", lambda *args: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            get(second, tmp_path)
    check_complete(tmp_path, get(second, tmp_path), second.body)  # not the first's bytes and then the second's


def test_part_outlives_a_mirror_that_refuses(serve, tmp_path):
    server, wrong = serve({"drop": 1000}, {"drop": 0}), serve(body=b"x" * 99)
    with pytest.raises(UserError):
        get(server, tmp_path, size=len(BODY))
    server.rules = [{}]
    check_complete(tmp_path, get(server, tmp_path, size=len(BODY), mirrors=[wrong.at]))
    assert server.ranges()[-1] == "bytes=1000-"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '{"source": 1}',
        '{"source": "URL", "validator": 3, "size": 300000}',
        '{"source": "URL", "validator": "x", "size": "x"}',
    ],
)
def test_damaged_notes_cost_only_time(serve, tmp_path, text):
    server = serve()
    (tmp_path / "data.tgz.part").write_bytes(b"old")
    for name in ("data.tgz.part.json", "data.tgz.json"):
        (tmp_path / name).write_text(text.replace("URL", server.url))
    check_complete(tmp_path, get(server, tmp_path))


def test_damaged_part_is_downloaded_once_more(serve, tmp_path):
    server = serve({"drop": 1000}, {"drop": 0})
    with pytest.raises(UserError):
        get(server, tmp_path)
    (tmp_path / "data.tgz.part").write_bytes(bytes(1000))  # as after a power failure
    server.rules = [{}]
    check_complete(tmp_path, get(server, tmp_path, sha256=SHA256))
    assert server.ranges()[-2:] == ["bytes=1000-", None]


def test_killed_anywhere_only_parts_are_left_and_the_next_run_ends_the_same(serve, tmp_path):
    server = serve({"slow": 0.05})
    code = """
        import importlib, sys, types
        sys.modules["fairseq_rope"] = package = types.ModuleType("fairseq_rope")  # without importing fairseq
        package.__path__ = [sys.argv[3]]
        from fairseq_rope.prepare.download import Archive, fetch
        fetch(Archive(sys.argv[1]), sys.argv[2], progress=False)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), server.url, str(tmp_path), helpers.USER_DIR]
    sizes = [0]
    for _ in range(2):
        process = subprocess.Popen(command)
        try:
            part, deadline = tmp_path / "data.tgz.part", time.monotonic() + 20
            while not part.exists() or part.stat().st_size < sizes[-1] + 60_000:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        sizes.append(part.stat().st_size)
        assert sorted(os.listdir(tmp_path)) == ["data.tgz.part", "data.tgz.part.json"]
    server.rules = [{}]
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges() == [None, f"bytes={sizes[1]}-", f"bytes={sizes[2]}-"]


def test_killed_before_the_rename(serve, tmp_path, monkeypatch):
    server = serve()
    with monkeypatch.context() as patch:
        patch.setattr("fairseq_rope.prepare.download._put_in_place", lambda *args: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            get(server, tmp_path)
    assert not (tmp_path / "data.tgz").exists()
    fetched = get(server, tmp_path)
    check_complete(tmp_path, fetched)
    assert fetched.source == server.url and len(server.seen) == 1  # nothing was left to ask for


# Mirrors


def test_folder_mirrors_are_used_in_place(serve, tmp_path):
    server = serve()
    below, flat, folder = tmp_path / "below", tmp_path / "flat", tmp_path / "folder"
    path = below / server.url.removeprefix("http://")
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY)
    flat.mkdir()
    (flat / "data.tgz").write_bytes(BODY)
    first = get(server, folder, mirrors=[tmp_path / "nothing", below, flat], sha256=SHA256)
    assert (first.path, first.source, first.published) == (path, str(path), True)
    assert get(server, folder, mirrors=[str(flat)]).path == flat / "data.tgz"
    assert server.seen == [] and os.listdir(folder) == ["data.tgz.json"]


def test_mirrors_in_turn_then_the_original(serve, tmp_path):
    missing, wrong, server = serve({"status": 404}), serve(body=b"no" * 400), serve()
    fetched = get(server, tmp_path, mirrors=[missing.at + "/", wrong.at, tmp_path / "no"], sha256=SHA256)
    check_complete(tmp_path, fetched)
    assert fetched.source == server.url
    host = server.url.removeprefix("http://")
    assert missing.seen == wrong.seen == [("GET", f"/{host}", None)]


def test_all_places_fail_in_one_line(serve, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: refused
        refused = f"http://127.0.0.1:{unused.getsockname()[1]}"
        missing, wrong, empty, page = (
            serve({"status": 404}),
            serve(body=b"no" * 400),
            serve(body=b""),
            serve(body=b"\n<!DOCTYPE html>"),
        )
        mirrors = [tmp_path / "no", missing.at, empty.at, page.at, refused]
        with pytest.raises(UserError) as caught:
            get(wrong, tmp_path / "f", mirrors=mirrors, sha256=SHA256)
    message = str(caught.value)
    digest = hashlib.sha256(b"no" * 400).hexdigest()
    assert message.startswith(f"cannot get data.tgz ({tmp_path}/f/data.tgz: no such file; {tmp_path}/no/127.0.0.1")
    for part in (
        f"{tmp_path}/no/data.tgz: no such file",
        "data.tgz: HTTP 404 Not Found",
        "data.tgz: an empty file",
        "data.tgz: Connection refused",
        f"{wrong.url}: wrong SHA-256: expected {SHA256}, got {digest}",
        "give a --mirror",
        f"put the file into {tmp_path}/f by hand",
    ):
        assert part in message
    assert "not an archive but a web page: it starts with '\\n<!DOCTYPE html>'" in message
    assert "\n" not in message and os.listdir(tmp_path / "f") == []


def test_mirror_of_another_kind(serve, tmp_path):
    with pytest.raises(UserError, match="mirror ftp://x: must be a folder or an address that starts with http"):
        get(serve(), tmp_path, mirrors=["ftp://x"])
    with pytest.raises(UserError, match=r"http://\[bad.*not a valid address|http://\[bad.*Invalid"):
        get(serve({"status": 404}), tmp_path, mirrors=["http://[bad"])


def test_proxy_and_https_after_http(serve, tmp_path, monkeypatch):
    proxy = serve({"status": 404}, {})
    monkeypatch.setattr("urllib.request._opener", None)  # it keeps the proxies it found first
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.at)
    archive = Archive("http://archive.invalid/a/data.tgz", sha256=SHA256)
    with pytest.raises(UserError, match=r"http://archive.*HTTP 404.*https://archive.invalid/a/data.tgz: Tunnel"):
        fetch(archive, tmp_path, progress=False)
    check_complete(tmp_path, fetch(archive, tmp_path, progress=False))
    assert [seen[:2] for seen in proxy.seen] == [
        ("GET", archive.url),
        ("CONNECT", "archive.invalid:443"),
        ("GET", archive.url),
    ]


def test_https_gives_what_http_refuses(serve, tmp_path, monkeypatch):
    server, genuine = serve(), transfer.urlopen

    def urlopen(request, timeout):
        if request.full_url.startswith("https://"):
            return genuine(server.url, timeout=timeout)
        raise transfer.HTTPError(request.full_url, 403, "Forbidden", {}, io.BytesIO())

    monkeypatch.setattr(transfer, "urlopen", urlopen)
    fetched = fetch(Archive("http://archive.invalid/a/data.tgz"), tmp_path, progress=False)
    check_complete(tmp_path, fetched)
    assert fetched.source == "https://archive.invalid/a/data.tgz"


# What is published, and what is not


def test_strict_refuses_by_the_declared_size_before_downloading(serve, tmp_path):
    server = serve()
    with pytest.raises(UserError, match="wrong size: expected 5 bytes, got 300000 bytes"):
        get(server, tmp_path, size=5)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("known", [{"size": 5}, {"sha256": "0" * 64}, {"md5": "0" * 32}], ids=["size", "sha256", "md5"])
def test_not_strict_accepts_and_says_so(serve, tmp_path, known):
    server = serve()
    for _ in range(2):  # downloaded, then found
        fetched = get(server, tmp_path, strict=False, **known)
        check_complete(tmp_path, fetched)
        assert fetched.published is False and fetched.difference.startswith("wrong ")
    with pytest.raises(UserError, match=r"data\.tgz: wrong"):
        get(serve({"status": 404}), tmp_path, **known)


def test_refused_file_in_the_folder_is_kept_aside(serve, tmp_path):
    (tmp_path / "data.tgz").write_bytes(b"mine")
    fetched = get(serve(), tmp_path, sha256=SHA256)
    assert fetched.path.read_bytes() == BODY and (tmp_path / "data.tgz.wrong").read_bytes() == b"mine"


def test_file_put_by_hand(serve, tmp_path):
    (tmp_path / "data.tgz").write_bytes(BODY)
    fetched = get(serve({"status": 404}), tmp_path, sha256=SHA256)
    check_complete(tmp_path, fetched)
    assert fetched.source == str(tmp_path / "data.tgz") and fetched.published


def test_digest_is_kept_while_size_and_time_agree(serve, tmp_path, monkeypatch):
    server, hashed = serve(), []
    get(server, tmp_path)
    genuine = hashlib.sha256
    monkeypatch.setattr("fairseq_rope.prepare.download.hashlib.sha256", lambda: hashed.append(1) or genuine())
    get(server, tmp_path, sha256=SHA256)
    assert hashed == []
    get(server, tmp_path, md5=MD5)  # which was not wanted before
    assert hashed == [1]
    get(server, tmp_path, md5=MD5)
    assert hashed == [1]
    os.utime(tmp_path / "data.tgz", ns=(1, 1))
    assert get(server, tmp_path).source == str(tmp_path / "data.tgz")  # somebody else wrote it
    assert hashed == [1, 1]
    known = json.loads((tmp_path / "data.tgz.json").read_text())
    assert (known["size"], known["mtime_ns"], known["sha256"]) == (len(BODY), 1, SHA256)


@pytest.mark.parametrize(("content", "reason"), [(b"", "an empty file"), (b" <html>", "not an archive but a web page")])
def test_useless_files_are_passed_over(serve, tmp_path, content, reason):
    (tmp_path / "data.tgz").write_bytes(content)
    with pytest.raises(UserError, match=f"data.tgz: {reason}"):
        get(serve({"status": 404}), tmp_path, strict=False)


# Disk


def test_too_little_room_is_told_before_downloading(serve, tmp_path, monkeypatch):
    server = serve({"drop": 1000}, {"drop": 0})
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100_000))
    needed = len(BODY) + transfer.MARGIN
    with pytest.raises(UserError, match=rf"the disk of {tmp_path} has 100000 bytes free, {needed} are needed$"):
        get(server, tmp_path)
    assert not (tmp_path / "data.tgz.part").exists()
    monkeypatch.undo()
    monkeypatch.setattr(transfer, "PAUSES", ())
    server.rules = [{"drop": 1000}]
    with pytest.raises(UserError, match="connection closed"):
        get(server, tmp_path)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda folder: SimpleNamespace(free=5))
    with pytest.raises(UserError, match=r"the 1000 bytes in data\.tgz\.part are kept"):
        get(server, tmp_path)


def test_full_disk_keeps_the_part(serve, tmp_path, monkeypatch):
    server, genuine = serve(), open

    class Filling(io.FileIO):
        def write(self, block):
            if self.tell() + len(block) > 100_000:
                super().write(block[: 100_000 - self.tell()])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(block)

    def fake_open(path, mode="r", **options):
        return (
            Filling(path, mode) if str(path).endswith(".part") and "r" not in mode else genuine(path, mode, **options)
        )

    monkeypatch.setattr(transfer, "open", fake_open, raising=False)
    with pytest.raises(UserError) as caught:
        get(server, tmp_path)
    assert f"the disk of {tmp_path} is full, at least {200_000 + transfer.MARGIN} more bytes are needed" in str(
        caught.value
    )
    assert "the 100000 bytes in data.tgz.part are kept" in str(caught.value)
    monkeypatch.undo()
    check_complete(tmp_path, get(server, tmp_path))
    assert server.ranges() == [None, "bytes=100000-"]


def test_folders_that_cannot_be_used(serve, tmp_path, monkeypatch):
    server = serve()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=f"cannot make the folder {tmp_path}/file/sub: Not a directory"):
        get(server, tmp_path / "file" / "sub")
    (tmp_path / "d" / "data.tgz").mkdir(parents=True)
    with pytest.raises(UserError, match=r"data.tgz is a folder: the archive data.tgz cannot be kept there"):
        get(server, tmp_path / "d")
    monkeypatch.setattr("fairseq_rope.prepare.download.os.access", lambda *args: False)
    with pytest.raises(UserError, match=f"no permission to write in the folder {tmp_path}"):
        get(server, tmp_path)
    # archives that are there serve from a folder that cannot be written
    (tmp_path / "data.tgz").write_bytes(BODY)
    assert get(server, tmp_path).sha256 == SHA256 and not (tmp_path / "data.tgz.json").exists()


def test_the_tiny_mirror(real_data, tmp_path):
    mirror = real_data / "wmt-layout" / "mirror"
    if not mirror.is_dir():
        pytest.skip(f"no {mirror}")
    archive = Archive("http://statmt.org/wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a")
    fetched = fetch(archive, tmp_path, [mirror], strict=False, progress=False)
    assert fetched.path == mirror / archive.host_path and fetched.published is False
