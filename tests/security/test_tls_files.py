"""Certificates and keys are checked before anything is served: each fault has its sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from switchsum.host_agent.credentials import NAMES
from switchsum.protos.tls import SERVER_NAMES, BadCertificate, ClientTls, ServerTls
from tests.security.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refusal(certificate: Path | None, key: Path | None, clients: Path | None = None) -> str:
    with pytest.raises(BadCertificate) as refused:
        ServerTls.load(certificate, key, clients, SERVER_NAMES)
    return str(refused.value)


def client_refusal(ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> str:
    with pytest.raises(BadCertificate) as refused:
        ClientTls.load(ca, certificate, key, NAMES)
    return str(refused.value)


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def self_signed(folder: Path, *extensions: str, days: int = 30) -> tuple[Path, Path]:
    certificate, key = folder / "self.crt", folder / "self.key"
    more = [word for extension in extensions for word in ("-addext", extension)]
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test",
            "-days", days, "-keyout", key, "-out", certificate, *more)  # fmt: skip
    key.chmod(0o600)
    return certificate, key


def test_no_file_is_no_tls() -> None:
    assert ServerTls.load(None, None, None, SERVER_NAMES) is None
    assert ClientTls.load(None, None, None, NAMES) is None


def test_good_files_of_an_authority_and_of_oneself(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    assert ServerTls.load(certificate, key, authority.ca, SERVER_NAMES) == ServerTls(certificate, key, authority.ca)
    assert ClientTls.load(authority.ca, certificate, key, NAMES) == ClientTls(authority.ca, certificate, key)
    own, own_key = self_signed(tmp_path, "subjectAltName=IP:127.0.0.1")
    assert ServerTls.load(own, own_key, None, SERVER_NAMES) is not None
    assert ClientTls.load(own, None, None, NAMES) is not None


def test_files_that_are_not_there_or_alone(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    absent = tmp_path / "absent"
    assert refusal(absent, key) == f"--tls-cert {absent}: cannot be read: No such file or directory"
    assert refusal(certificate, absent) == f"--tls-key {absent}: cannot be read: No such file or directory"
    assert refusal(certificate, key, absent) == f"--tls-clients {absent}: cannot be read: No such file or directory"
    assert refusal(tmp_path, key) == f"--tls-cert {tmp_path}: cannot be read: Is a directory"
    assert refusal(certificate, None) == "--tls-cert without --tls-key: a certificate and its key go together"
    assert refusal(None, key) == "--tls-key without --tls-cert: a certificate and its key go together"
    assert refusal(None, None, authority.ca).startswith("--tls-clients without --tls-cert: only a server with TLS can ask")
    assert client_refusal(None, certificate, key).startswith("SWITCHSUM_CERT without SWITCHSUM_CA: name the authority")
    assert client_refusal(authority.ca, None, key).startswith("SWITCHSUM_KEY without SWITCHSUM_CERT: a certificate and")


def test_files_that_hold_something_else(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    noise.chmod(0o600)
    assert f"--tls-cert {noise}: holds no certificate in PEM" in refusal(noise, key)
    assert f"--tls-key {noise}: holds no private key in PEM" in refusal(certificate, noise)
    assert f"--tls-clients {noise}: holds no certificate in PEM" in refusal(certificate, key, noise)
    assert f"--tls-cert {key}: holds no certificate in PEM" in refusal(key, certificate)
    renamed = tmp_path / "renamed"
    renamed.write_text(certificate.read_text().replace("BEGIN CERTIFICATE", "BEGIN CERTIFICBTE"))
    assert f"--tls-cert {renamed}: holds no certificate in PEM" in refusal(renamed, key)


def damaged(pem: str, how: str) -> str:
    """The first block of the text. Nothing here depends on what the block holds, which is another in every run."""
    begin, *body, end = pem[: pem.index("\n", pem.index("-----END"))].splitlines()
    changed = {
        "of zeros": ["A" * len(line) for line in body],
        "without a body": [],
        "a line is lost": body[:1] + body[2:],
        "not base64": ["!" + body[0][1:], *body[1:]],
        "not ASCII": ["\N{NO-BREAK SPACE}" + body[0], *body[1:]],
    }
    if how == "cut off":
        return "\n".join([begin, *body[:-1]])
    return "\n".join([begin, *changed[how], end]) + "\n"


@pytest.mark.parametrize("how", ["of zeros", "without a body", "a line is lost", "not base64", "not ASCII", "cut off"])
def test_files_that_are_damaged(authority: Authority, tmp_path: Path, how: str) -> None:
    certificate, key = authority.issue()
    bad, bad_key = tmp_path / "bad", tmp_path / "bad.key"
    bad.write_text(damaged(certificate.read_text(), how), "utf-8")
    bad_key.write_text(damaged(key.read_text(), how), "utf-8")
    bad_key.chmod(0o600)
    assert f"--tls-cert {bad}: the certificate is damaged" in refusal(bad, key)
    assert f"--tls-clients {bad}: the certificate is damaged" in refusal(certificate, key, bad)
    assert f"SWITCHSUM_CA {bad}: the certificate is damaged" in client_refusal(bad)
    assert f"--tls-key {bad_key}: the private key is damaged" in refusal(certificate, bad_key)


def test_comments_beside_a_certificate_may_be_in_any_language(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    described = tmp_path / "described"
    described.write_text(f"Inhaber: Zürich\n{authority.ca.read_text()}", "utf-8")
    assert ClientTls.load(described, None, None, NAMES) is not None
    described.write_text(f"Inhaber: Zürich\n{certificate.read_text()}", "utf-8")
    assert ServerTls.load(described, key, described, SERVER_NAMES) is not None


def test_a_key_of_another_certificate_that_is_encrypted_or_open_to_others(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    _, other = authority.issue()
    assert refusal(certificate, other) == f"--tls-key {other}: is not the key of --tls-cert {certificate}"
    locked = tmp_path / "locked"
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    assert f"--tls-key {locked}: is encrypted, and nobody is there to give the passphrase" in refusal(certificate, locked)
    key.chmod(0o640)
    assert refusal(certificate, key) == f"--tls-key {key}: others than its owner may use it (mode 0640); chmod 600 {key}"


@pytest.mark.parametrize("side", ["server", "client"])
def test_certificates_that_have_expired_are_not_valid_yet_or_serve_another_end(
    authority: Authority, tmp_path: Path, side: str
) -> None:
    def refused(certificate: Path, key: Path) -> str:
        return refusal(certificate, key) if side == "server" else client_refusal(authority.ca, certificate, key)

    option = "--tls-cert" if side == "server" else "SWITCHSUM_CERT"
    certificate, key = authority.issue(valid_days=-1)
    expected = f"{option} {certificate}: certificate has expired (see `openssl x509 -noout -dates -in {certificate}`); renew"
    assert expected in refused(certificate, key)
    certificate, key = authority.issue(valid_days=400)
    assert f"{option} {certificate}: certificate is not yet valid" in refused(certificate, key)
    wrong = "clientAuth" if side == "server" else "serverAuth"
    certificate, key = self_signed(tmp_path, f"extendedKeyUsage={wrong}")
    assert f"{option} {certificate}: is not made for {side}s" in refused(certificate, key)


def test_an_authority_that_has_expired(tmp_path: Path) -> None:
    key, request, certificate = tmp_path / "ca.key", tmp_path / "ca.csr", tmp_path / "ca.pem"
    extensions = tmp_path / "extensions"
    extensions.write_text("basicConstraints=critical,CA:true\n")
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=old", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-signkey", key, "-days", "-1", "-extfile", extensions, "-out", certificate)
    assert f"SWITCHSUM_CA {certificate}: the authority's certificate expired on" in client_refusal(certificate)
