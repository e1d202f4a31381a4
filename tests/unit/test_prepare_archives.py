"""Unpacking named members: exact bytes, or one line and nothing left; segments of sgm files as sacreBLEU reads them."""

import errno
import gzip
import io
import os
import random
import subprocess
import tarfile
import zlib
from types import SimpleNamespace

import pytest

from fairseq_rope.errors import UserError
from fairseq_rope.prepare import archives, tar_reader
from fairseq_rope.prepare.archives import sgm_segments, unpack

EN = "".join(f"line {i} ä\n" for i in range(700)).encode()
DE = "".join(f"Zeile {i} {random.Random(i).random()}\n" for i in range(900)).encode()
FILES = {"training/a.en": EN, "training/a.de": DE, "b.en.gz": gzip.compress(EN, mtime=0), "other": b"x" * 3000}
SMALL = {"x/a": b"one\ntwo\n", "foreign": bytes(600), "b.gz": gzip.compress(b"three\n", mtime=0)}


def tar_bytes(files, prefix="", form=tarfile.GNU_FORMAT):
    """A tar of ``{name: bytes or TarInfo}``."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content in files.items() if isinstance(files, dict) else files:
            if isinstance(content, bytes):
                info = tarfile.TarInfo(prefix + name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                tar.addfile(content)
    return out.getvalue()


def special(name, kind, link="elsewhere"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def write(folder, content, zipped=True):
    path = folder / "data.tgz"
    path.write_bytes(gzip.compress(content, 1, mtime=0) if zipped else content)
    return path


def refused(path, members, out, match, **options):
    """Unpacking is refused in one line that names the archive; nothing is left in ``out``."""
    with pytest.raises(UserError, match=match) as caught:
        unpack(path, members, out, progress=False, **options)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not out.exists() or os.listdir(out) == []


# What is written


@pytest.mark.parametrize("zipped", [True, False], ids=["tgz", "tar"])
@pytest.mark.parametrize("prefix", ["", "./", "././"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_named_members_only(tmp_path, zipped, prefix, form):
    path = write(tmp_path, tar_bytes(FILES, prefix, form), zipped)
    members = ["b.en.gz", "training/a.de"]
    paths = unpack(path, members, tmp_path / "sub" / "out", progress=False)
    assert paths == {"b.en.gz": tmp_path / "sub/out/b.en", "training/a.de": tmp_path / "sub/out/a.de"}
    assert paths["b.en.gz"].read_bytes() == EN and paths["training/a.de"].read_bytes() == DE
    assert sorted(os.listdir(tmp_path / "sub" / "out")) == ["a.de", "b.en"]


def test_gnu_tar_with_long_names_and_several_gzip_members(tmp_path):
    long = "d" * 60 + "/" + "e" * 70 + "ü" * 20
    (tmp_path / "in" / ("d" * 60)).mkdir(parents=True)
    (tmp_path / "in" / long).write_bytes(DE)
    (tmp_path / "in" / "a").write_bytes(EN)
    subprocess.run(["tar", "-C", tmp_path / "in", "-cf", tmp_path / "x.tar", "a", long], check=True)
    content = (tmp_path / "x.tar").read_bytes()
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(content[:5000]) + gzip.compress(content[5000:]) + bytes(99))  # as pigz, padded
    paths = unpack(path, [long], tmp_path / "out", progress=False)
    assert paths[long].read_bytes() == DE


def test_blocks_larger_than_one_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_reader, "CHUNK", 512)
    path = write(tmp_path, tar_bytes(FILES))
    assert unpack(path, ["training/a.en"], tmp_path / "o", progress=False)["training/a.en"].read_bytes() == EN
    for limit in (1, 37, 699, 700, 701):
        wanted = b"".join(EN.splitlines(keepends=True)[:limit])
        for member in ("training/a.en", "b.en.gz"):
            out = tmp_path / f"{limit}{member[0]}"
            assert unpack(path, [member], out, progress=False, limit=limit)[member].read_bytes() == wanted


def test_last_line_without_a_line_feed(tmp_path):
    path = write(tmp_path, tar_bytes({"a": b"1\n2\r\n\n3"}))
    for limit, wanted in ((None, b"1\n2\r\n\n3"), (3, b"1\n2\r\n\n"), (4, b"1\n2\r\n\n3"), (9, b"1\n2\r\n\n3")):
        assert unpack(path, ["a"], tmp_path / f"{limit}", progress=False, limit=limit)["a"].read_bytes() == wanted


def test_empty_member(tmp_path):
    path = write(tmp_path, tar_bytes({"a": b"", "b": b"x"}))
    assert unpack(path, ["a"], tmp_path / "o", progress=False)["a"].read_bytes() == b""


def test_limit_stops_reading_early(tmp_path):
    path = write(tmp_path, tar_bytes({**SMALL, "rest": random.Random(0).randbytes(200_000)}))
    path.write_bytes(path.read_bytes()[:100_000])  # truncated after the members: not read
    paths = unpack(path, ["x/a", "b.gz"], tmp_path / "o", progress=False, limit=1)
    assert [p.read_bytes() for p in paths.values()] == [b"one\n", b"three\n"]
    refused(path, ["x/a", "b.gz"], tmp_path / "p", "is truncated")
    refused(path, ["x/a", "b.gz"], tmp_path / "q", "is truncated", limit=1, to_end=True)


def test_files_that_are_there_are_not_unpacked_again(tmp_path):
    path, out = write(tmp_path, tar_bytes(SMALL)), tmp_path / "o"
    first = unpack(path, ["x/a", "b.gz"], out, progress=False)
    (out / "a").write_bytes(b"changed")
    path.unlink()
    assert unpack(path, ["x/a", "b.gz"], out, progress=False) == first
    (out / "b").unlink()  # killed between two renames: all again
    (out / ".b.99.tmp").write_bytes(b"left by a killed run")
    write(tmp_path, tar_bytes(SMALL))
    unpack(path, ["x/a", "b.gz"], out, progress=False)
    assert (out / "a").read_bytes() == b"one\ntwo\n" and sorted(os.listdir(out)) == ["a", "b"]


def test_bar_counts_the_bytes_read(tmp_path, capsys):
    path = write(tmp_path, tar_bytes(FILES))
    unpack(path, ["training/a.en"], tmp_path / "o")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 2 and lines[-1].startswith("unpacking data.tgz: 100%")


def test_the_tiny_mirror_as_tar_unpacks_it(real_data, tmp_path):
    mirror = real_data / "wmt-layout" / "mirror" / "statmt.org"
    if not mirror.is_dir():
        pytest.skip(f"no {mirror}")
    path, member = mirror / "wmt13" / "training-parallel-europarl-v7.tgz", "training/europarl-v7.fr-en.fr"
    wanted = subprocess.run(["tar", "-xOf", path, member], check=True, capture_output=True).stdout
    assert unpack(path, [member], tmp_path, progress=False)[member].read_bytes() == wanted
    members = [f"giga-fren.release2.fixed.{language}.gz" for language in ("en", "fr")]
    giga = unpack(mirror / "wmt10" / "training-giga-fren.tar", members, tmp_path, progress=False)
    assert [len(giga[member].read_bytes().splitlines()) for member in members] == [1500, 1500]


# What is refused


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.DIRTYPE, "a folder"),
        (tarfile.FIFOTYPE, "a fifo"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
    ],
)
@pytest.mark.parametrize("limit", [None, 1])
def test_members_that_are_no_files(tmp_path, kind, says, limit):
    path = write(tmp_path, tar_bytes({"a": b"1\n", "x/b": special("x/b", kind, "/etc/passwd")}))
    refused(path, ["a", "x/b"], tmp_path / "o", f"the member 'x/b' is {says}.*, not a plain file", limit=limit)
    # as a foreign member it is nobody's business
    assert unpack(path, ["a"], tmp_path / "p", progress=False)["a"].read_bytes() == b"1\n"
    assert os.listdir(tmp_path / "p") == ["a"]


@pytest.mark.parametrize("name", ["../b", "/x/b", "x/../b", "./../b", ".//x/b", "x/../../x/b"])
def test_members_that_would_leave_the_folder(tmp_path, name):
    content = tar_bytes({name: b"1\n"})
    assert name.encode() in content
    refused(write(tmp_path, content), ["x/b"], tmp_path / "o", "would be written outside the folder")
    path = write(tmp_path, tar_bytes({name: b"1\n", "c": b"2\n"}))
    assert unpack(path, ["c"], tmp_path / "p", progress=False)["c"].read_bytes() == b"2\n"
    assert sorted(os.listdir(tmp_path)) == ["data.tgz", "o", "p"] and os.listdir(tmp_path / "p") == ["c"]


def test_the_same_member_twice(tmp_path):
    for first, second in (("a", "a"), ("a", "./a")):
        path = write(tmp_path, tar_bytes([(first, b"1\n"), (second, b"2\n")]))
        refused(path, ["a"], tmp_path / "o", "the member 'a' is there twice")


def test_members_named_wrongly(tmp_path):
    path = write(tmp_path, tar_bytes(SMALL))
    for members, match in (
        (["../a"], "must be a relative path without '..'"),
        (["/a"], "must be a relative path"),
        ([""], "must be a relative path"),
        ([".gz"], "must be a relative path"),
        (["x/a", "y/a"], "'y/a': another member is written to"),
        (["a", "a.gz"], "'a.gz': another member is written to"),
    ):
        with pytest.raises(UserError, match=match):
            unpack(path, members, tmp_path / "o", progress=False)
    assert not (tmp_path / "o").exists()


def test_missing_members_are_named(tmp_path):
    path = write(tmp_path, tar_bytes({f"n{i}": b"" for i in range(9)} | SMALL))
    refused(path, ["x/a", "x/c", "d"], tmp_path / "o", r"lacks 'x/c', 'd': it has 'n0', 'n1', 'n2', 'n3', 'n4', …$")
    refused(write(tmp_path, tar_bytes({})), ["a"], tmp_path / "o", "lacks 'a': it has no other members")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty: no archive"),
        (b"<!DOCTYPE html>\n<p>404", r"is no tar archive: it starts with '<!DOCTYPE html>\\n<p>404'"),
        (b"a" * 2000, "is no tar archive: it starts with 'a{40}'"),
        (b"BZh91AY&SY\xff" * 99, r"is no tar archive: it starts with b'BZh91"),
        (gzip.compress(b"<html>" * 200, mtime=0), "is no tar archive: gunzipped, it starts with '<html>"),
        (gzip.compress(b"", mtime=0), "is no tar archive: gunzipped, it starts with ''"),
        (b"\x1f\x8b rest is nonsense", "is damaged"),
        (b"\x1f\x8b", "is truncated"),
    ],
)
def test_what_is_no_archive(tmp_path, content, match):
    path = tmp_path / "data.tgz"
    path.write_bytes(content)
    refused(path, ["a"], tmp_path / "o", match)


@pytest.mark.parametrize("limit", [None, 1])
def test_truncated_anywhere(tmp_path, limit):
    members, lines = ["x/a", "b.gz"], (b"one\n", b"three\n")
    for zipped in (True, False):
        path, whole = write(tmp_path, tar_bytes(SMALL), zipped), None
        whole = path.read_bytes()
        # A plain tar is whole with its two zero blocks; what pads it to 10,240 bytes means nothing.
        end = len(whole) if zipped else len(whole.rstrip(b"\0")) // 512 * 512 + 512 + 1024
        for cut in range(1, end, 1 if limit is None else 7) if zipped else range(1, end, 37):
            path.write_bytes(whole[:cut])
            out = tmp_path / f"{zipped}{cut}"
            if limit is None:
                refused(path, members, out, "is truncated|is no tar archive|is damaged|truncated gzip")
                continue
            try:  # with a limit the rest need not be there, but what is written is right
                paths = unpack(path, members, out, progress=False, limit=limit)
                assert tuple(p.read_bytes() for p in paths.values()) == lines
            except UserError:
                assert os.listdir(out) == []
        path.write_bytes(whole[:end])
        assert len(unpack(path, members, tmp_path / f"all{zipped}", progress=False)) == 2


def test_a_changed_bit_anywhere_in_a_zipped_archive(tmp_path):
    whole = gzip.compress(tar_bytes(SMALL), mtime=0)
    path, harmless = tmp_path / "data.tgz", 0
    for at in range(2, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        out = tmp_path / str(at)
        try:
            paths = unpack(path, ["x/a", "b.gz"], out, progress=False)
            harmless += 1
            assert at < 10 and paths["x/a"].read_bytes() == SMALL["x/a"]  # time stamp, system, flags of the header
        except UserError as error:
            assert "\n" not in str(error)
            assert os.listdir(out) == []
    assert 0 < harmless < 8


def test_random_headers_never_end_in_a_traceback(tmp_path):
    source = random.Random(4)
    whole, path, out = tar_bytes(SMALL, form=tarfile.PAX_FORMAT), tmp_path / "data.tgz", tmp_path / "o"
    for _ in range(150):
        header = bytearray(whole[:512])
        for _ in range(source.randint(1, 4)):
            header[source.choice([*range(100, 136), *range(124, 136), 156, 257, 345])] = source.choice(
                b"07xLKSgV \x80\xff-"
            )
        header[148:156] = b"%06o\0 " % sum(header[:148], sum(header[156:], 256))  # a checksum that agrees
        path.write_bytes(bytes(header) + whole[512:])
        try:
            unpack(path, ["x/a", "b.gz"], out, progress=False)
            for file in out.iterdir():
                file.unlink()
        except UserError as error:
            assert "\n" not in str(error) and os.listdir(out) == []


def test_a_header_that_claims_too_much(tmp_path):
    info = tarfile.TarInfo("a")
    info.size = 1 << 62
    path = write(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    refused(path, ["a"], tmp_path / "o", f"needs {1 << 62} bytes or more, the disk of")
    refused(path, ["b"], tmp_path / "o", "is truncated")
    info.type = tarfile.GNUTYPE_LONGNAME
    refused(write(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)), ["a"], tmp_path / "o", "is damaged")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    content = bytearray(tar_bytes({"a": b"1\n", "b": b"2\n"}))
    content[1024 + 20] ^= 1
    for zipped in (True, False):
        refused(write(tmp_path, bytes(content), zipped), ["a"], tmp_path / "o", r"is damaged \(bad checksum\)")


@pytest.mark.parametrize(
    ("inner", "match"),
    [
        (gzip.compress(EN, mtime=0)[:-200], "its member 'b.gz' is a truncated gzip file"),
        (gzip.compress(EN, mtime=0)[:-8] + b"12345678", "its member 'b.gz' is no intact gzip file .CRC"),
        (gzip.compress(EN, mtime=0) + b"junk", "its member 'b.gz' is no intact gzip file"),
        (b"plain text\n", "its member 'b.gz' is no intact gzip file .Not a gzipped file"),
        (gzip.compress(EN, mtime=0)[:100] + b"\xff" * 100, "its member 'b.gz' is no intact gzip file"),
    ],
    ids=["truncated", "checksum", "junk", "text", "damaged"],
)
def test_a_bad_gzip_file_inside(tmp_path, inner, match):
    refused(write(tmp_path, tar_bytes({"a": b"1\n", "b.gz": inner}), False), ["a", "b.gz"], tmp_path / "o", match)


def test_checksum_of_a_later_member_spoils_the_earlier_too(tmp_path):
    path = tmp_path / "data.tgz"
    packed = gzip.compress(tar_bytes(FILES), mtime=0)
    path.write_bytes(packed[:-8] + (zlib.crc32(packed[-8:-4])).to_bytes(4, "little") + packed[-4:])
    refused(path, ["training/a.en"], tmp_path / "o", "is damaged .CRC check failed")


# Disk


def test_unreadable_and_unwritable(tmp_path):
    refused(tmp_path / "none.tgz", ["a"], tmp_path / "o", "cannot read .*none.tgz: No such file")
    (tmp_path / "folder.tgz").mkdir()
    refused(tmp_path / "folder.tgz", ["a"], tmp_path / "o", "cannot read .*folder.tgz: Is a directory")
    path = write(tmp_path, tar_bytes(SMALL))
    with pytest.raises(UserError, match=r"cannot write in the folder .*data\.tgz/o: Not a directory"):
        unpack(path, ["x/a"], path / "o", progress=False)
    (tmp_path / "o" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="o/a: it is a folder"):
        unpack(path, ["x/a"], tmp_path / "o", progress=False)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="p/a: it is a link"):
        unpack(path, ["x/a"], tmp_path / "p", progress=False)
    assert not (tmp_path / "elsewhere").exists()


def test_full_disk(tmp_path, monkeypatch):
    path = write(tmp_path, tar_bytes(FILES))

    @archives.contextlib.contextmanager
    def filling(target, mode):
        class Full(io.BytesIO):
            def write(self, block):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        yield Full() if target.name == "a.de" else io.BytesIO()

    with monkeypatch.context() as patch:
        patch.setattr(archives, "replacing", filling)
        refused(path, ["training/a.en", "training/a.de"], tmp_path / "o", "the disk is full, .*a.de needs more room")
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    refused(path, ["training/a.en"], tmp_path / "o", f"a.en needs {len(EN)} bytes or more, .* has 10 free")


def test_reading_error_is_not_called_a_writing_error(tmp_path, monkeypatch):
    path = write(tmp_path, tar_bytes({"a": random.Random(0).randbytes(90_000)}), False)
    genuine = tar_reader._Watched.read

    def read(self, size=-1):
        if self.tell() > 20_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return genuine(self, min(size, 8192))

    monkeypatch.setattr(tar_reader._Watched, "read", read)
    refused(path, ["a"], tmp_path / "o", "cannot read .*data.tgz: Input/output error")


def test_stopped_in_the_middle_nothing_is_left(tmp_path, monkeypatch):
    path = write(tmp_path, tar_bytes(FILES))

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(tar_reader.TarReader, "check_end", stop)
    with pytest.raises(KeyboardInterrupt):
        unpack(path, ["training/a.en", "b.en.gz"], tmp_path / "o", progress=False)
    assert os.listdir(tmp_path / "o") == []


def test_a_rename_that_fails_takes_the_others_back(tmp_path, monkeypatch):
    path, genuine = write(tmp_path, tar_bytes(FILES)), os.replace

    def replace(source, target):
        if str(target).endswith("a.en"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        genuine(source, target)

    monkeypatch.setattr("fairseq_rope.files.os.replace", replace)
    with pytest.raises(UserError, match=r"cannot write .*a\.en: Input/output error"):
        unpack(path, ["training/a.en", "training/a.de"], tmp_path / "o", progress=False)
    assert os.listdir(tmp_path / "o") == []


# Segments


SGM = """<srcset setid="x" srclang="any">
<doc docid="1" genre="news" origlang="de">
<p>
<seg id="1"> A  dog &amp;\ta\u00a0cat\u2028runs. </seg>
<seg id="2"></seg>
</p>
</doc>
<doc docid="2">
<seg id="1">x < y > z "q" </seg>\r
</doc>
</srcset>
"""


def sacrebleu_lines(path, out):
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    FakeSGMLDataset("x", langpairs={})._convert_format(str(path), str(out))
    return out.read_text(encoding="utf-8").split("\n")[:-1]


def test_segments_as_sacrebleu_extracts_them(tmp_path):
    path = tmp_path / "a.sgm"
    path.write_bytes(SGM.encode())
    wanted = ["A dog &amp; a cat runs.", "", 'x < y > z "q"']
    assert sgm_segments(path) == wanted == sacrebleu_lines(path, tmp_path / "out")


def test_segments_of_the_genuine_newstest2014(real_data, tmp_path):
    archive = real_data / "wmt-layout" / "mirror" / "statmt.org" / "wmt14" / "test-full.tgz"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    members = [
        f"test-full/newstest2014-{pair}-{side}.sgm"
        for pair, sides in {
            "deen": ("src.en", "ref.de", "src.de", "ref.en"),
            "fren": ("src.en", "ref.fr", "src.fr", "ref.en"),
        }.items()
        for side in sides
    ]
    for path in unpack(archive, members, tmp_path, progress=False).values():
        segments = sgm_segments(path)
        assert len(segments) == 3003
        assert segments == sacrebleu_lines(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ('<seg id="2">', '<seg id="3">', r"line 5: segment 3 follows segment 1"),
        ('<seg id="2">', '<seg id="1">', r"line 5: segment 1 follows segment 1"),
        ('<seg id="2"></seg>\n', '<seg id="2">\n</seg>\n', "line 5: must be one segment"),
        ('<seg id="2"></seg>', '<seg id="2">a</seg> b', "line 5: must be one segment"),
        ('<seg id="2"></seg>', '<seg id="2">a</seg><seg id="3">b</seg>', "line 5: must be one segment"),
        ('<seg id="2"></seg>', ' <seg id="2">a</seg>', "line 5: must be one segment"),
        ('<seg id="2">', "<seg >", "line 5: must be one segment"),
        ("</doc>\n</srcset>\n", "", "is cut off: 2 documents begin and 1 end"),
        ("<seg ", "<sag ", "has no segments"),
        ("cat", "c\udcfft", "is not UTF-8 text: byte 0xff"),
    ],
)
def test_bad_sgm_files(tmp_path, before, after, match):
    path = tmp_path / "a.sgm"
    assert before in SGM
    path.write_bytes(SGM.replace(before, after).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=match) as caught:
        sgm_segments(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_sgm_file_that_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*a\.sgm: No such file"):
        sgm_segments(tmp_path / "a.sgm")
