"""TLS of the gRPC services: files are checked before they are used, and two ends that do not come together are told why.

gRPC names none of the reasons: a peer without TLS, an unknown authority or a wrong name are all "unavailable" to it, retried
until the deadline. So files are checked here by a handshake with themselves in memory, and `diagnose` looks at a server with
Python's own TLS.
"""

import errno
import os
import re
import socket
import ssl
import stat
import time
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113: a client begins so
_SETTINGS = 4  # and a server answers with a frame of this type
_FLIGHTS = 10  # of a handshake, at most; TLS 1.3 needs three
_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_* of OpenSSL
_WRONG_NAME, _WRONG_ADDRESS = 62, 64


class BadCertificate(ValueError):
    """A certificate or key cannot be used; the message names option, file, fault and remedy."""


@dataclass(frozen=True)
class Names:
    """What a person calls the three files of one end: options or environment variables."""

    ca: str
    certificate: str
    key: str


SERVER_NAMES = Names("--tls-clients", "--tls-cert", "--tls-key")  # of every server of ours


@dataclass(frozen=True)
class ServerTls:
    """A server's checked files. `clients`: authorities, one of which a client's certificate must be from; None: any client."""

    certificate: Path
    key: Path
    clients: Path | None = None

    @classmethod
    def load(cls, certificate: Path | None, key: Path | None, clients: Path | None, names: Names) -> "ServerTls | None":
        """None if no file is named. Raises BadCertificate."""
        if certificate is None or key is None:
            _pair(certificate, key, names)
            if clients is not None:
                raise BadCertificate(f"{names.ca} without {names.certificate}: only a server with TLS can ask for certificates")
            return None
        _check_pair(certificate, key, names, server=True)
        if clients is not None:
            _check_authorities(clients, names.ca)
        return cls(certificate, key, clients)

    def credentials(self) -> grpc.ServerCredentials:
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        authorities = None if self.clients is None else self.clients.read_bytes()
        return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


@dataclass(frozen=True)
class ClientTls:
    """A client's checked files. `ca`: authorities, one of which the server's certificate must come from."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def load(cls, ca: Path | None, certificate: Path | None, key: Path | None, names: Names) -> "ClientTls | None":
        """None if no file is named. Raises BadCertificate."""
        _pair(certificate, key, names)
        if ca is None:
            if certificate is not None:
                raise BadCertificate(f"{names.certificate} without {names.ca}: name the authority of the server's certificate")
            return None
        _check_authorities(ca, names.ca)
        if certificate is not None and key is not None:
            _check_pair(certificate, key, names, server=False)
        return cls(ca, certificate, key)

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            None if self.key is None else self.key.read_bytes(),
            None if self.certificate is None else self.certificate.read_bytes(),
        )

    def context(self) -> ssl.SSLContext:
        """The same demands, for Python's own TLS."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.ca))
        if self.certificate is not None and self.key is not None:
            context.load_cert_chain(self.certificate, self.key)
        context.set_alpn_protocols(["h2"])
        return context


def check_private(path: Path, option: str) -> None:
    """Raise BadCertificate if anybody but its owner may read or write the file, or if it is not there."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise BadCertificate(f"{option} {path}: cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise BadCertificate(f"{option} {path}: others than its owner may use it (mode {mode:04o}); chmod 600 {path}")


def diagnose(address: str, tls: ClientTls | None, who: str, names: Names, timeout_s: float) -> str | None:
    """Why gRPC does not get through to a server that listens at `address`, in a sentence; None if TLS is not the reason.

    `who`: the server in a sentence, such as "the controller at 127.0.0.1:50099"; `names`: of this end's files.
    """
    try:
        if tls is None:
            if not _speaks_plainly(address, timeout_s) and _speaks_tls(address, timeout_s):
                return f"{who} speaks TLS only: name the file with the authority of its certificate in {names.ca}"
            return None
        return _handshake_fault(address, tls, who, names, timeout_s)
    except OSError as error:  # nobody listens, or the line is bad: gRPC's words will do
        if isinstance(error, ssl.SSLError) or error.errno in (errno.ECONNRESET, errno.EPIPE):
            return f"{who} breaks off the TLS handshake ({error})"
        return None


# --- files --------------------------------------------------------------------------------------------------------------


def _pair(certificate: Path | None, key: Path | None, names: Names) -> None:
    if (certificate is None) != (key is None):
        given, missing = (names.key, names.certificate) if certificate is None else (names.certificate, names.key)
        raise BadCertificate(f"{given} without {missing}: a certificate and its key go together")


def _text(path: Path, option: str, marker: str, kind: str) -> str:
    try:
        text = path.read_text("ascii", "replace")
    except OSError as error:
        raise BadCertificate(f"{option} {path}: cannot be read: {error.strerror}") from None
    if not re.search(f"^-----BEGIN [A-Z0-9 ]*{marker}", text, re.MULTILINE):
        raise BadCertificate(f"{option} {path}: holds no {kind} in PEM (a text with a line `-----BEGIN ...{marker}`)")
    return text


def _certificates(path: Path, option: str) -> ssl.SSLContext:
    """That trusts all that the file holds."""
    _text(path, option, "CERTIFICATE-----", "certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=str(path))
    except ssl.SSLError as error:
        raise BadCertificate(
            f"{option} {path}: the certificate is damaged ({error.reason or 'nothing can be read between its BEGIN and END'}); "
            "copy it again, or have it issued again"
        ) from None
    return context


def _check_authorities(path: Path, option: str) -> None:
    context = _certificates(path, option)
    ends = [ssl.cert_time_to_seconds(str(found["notAfter"])) for found in context.get_ca_certs()]
    if ends and max(ends) < time.time():
        raise BadCertificate(f"{option} {path}: the authority's certificate expired on {time.ctime(max(ends))}; renew it")


def _check_pair(certificate: Path, key: Path, names: Names, *, server: bool) -> None:
    """That both can be read and belong together, and that the other end may accept them now."""
    where = f"{names.certificate} {certificate}"
    _certificates(certificate, names.certificate)
    if "ENCRYPTED" in _text(key, names.key, "PRIVATE KEY-----", "private key"):
        raise BadCertificate(
            f"{names.key} {key}: is encrypted, and nobody is there to give the passphrase; store it without "
            "(openssl pkey -in OLD -out NEW) and protect the file"
        )
    check_private(key, names.key)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if server else ssl.PROTOCOL_TLS_SERVER)
    try:
        own.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(f"{names.key} {key}: is not the key of {where}") from None
        if not error.reason:  # a certificate that cannot be read was told apart above
            raise BadCertificate(
                f"{names.key} {key}: the private key is damaged, or of a kind that OpenSSL cannot use"
            ) from None
        raise BadCertificate(f"{where}, {names.key} {key}: cannot be used together ({error.reason})") from None
    own.check_hostname = other.check_hostname = False
    if not server:
        own.verify_mode = ssl.CERT_NONE
        other.load_cert_chain(certificate, key, password="")
    other.verify_mode = ssl.CERT_REQUIRED
    other.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate vouches for itself: whose it is, the other end judges
    other.load_verify_locations(cafile=str(certificate))
    try:
        _shake_hands_in_memory(*((own, other) if server else (other, own)))
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            raise BadCertificate(
                f"{where}: {error.verify_message} (see `openssl x509 -noout -dates -in {certificate}`); renew it, or set "
                "the clock"
            ) from None
        use = "servers" if server else "clients"
        raise BadCertificate(f"{where}: is not made for {use} ({error.verify_message}); have one issued for that") from None


def _shake_hands_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises SSLCertVerificationError when an end does not accept the other's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_FLIGHTS):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


# --- a look at a server -------------------------------------------------------------------------------------------------


def _connect(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(timeout_s)
        try:
            opened.connect(address.removeprefix("unix:"))
        except OSError:
            opened.close()
            raise
        return opened
    return socket.create_connection((host_of(address), int(address.rpartition(":")[2])), timeout_s)


def host_of(address: str) -> str:
    """The host of "HOST:PORT", without the brackets of an IPv6 address; of "unix:PATH", "localhost", as gRPC has it."""
    return "localhost" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")


def leaves_host(address: str) -> bool:
    """Whether other hosts may see what is sent to this address, or reach what listens there; so for unknown names."""
    host = host_of(address)
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _speaks_plainly(address: str, timeout_s: float) -> bool:
    """Whether HTTP/2 is answered without TLS."""
    with _connect(address, timeout_s) as opened:
        try:
            opened.sendall(_PREFACE)
            answer = opened.recv(9)
        except OSError:
            return False
        return len(answer) > 3 and answer[3] == _SETTINGS


def _speaks_tls(address: str, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with _connect(address, timeout_s) as opened:
        try:
            with context.wrap_socket(opened):
                return True
        except OSError:
            return False


def _handshake_fault(address: str, tls: ClientTls, who: str, names: Names, timeout_s: float) -> str | None:
    context = tls.context()
    try:
        _greet(address, context, timeout_s)
    except ssl.SSLCertVerificationError as error:
        return _unaccepted(error, address, tls, who, names, timeout_s)
    except OSError as error:
        if isinstance(error, (TimeoutError, ConnectionRefusedError)):
            return None
        if _speaks_plainly(address, timeout_s):
            return f"{who} speaks without TLS, but {names.ca} asks for it: start it with a certificate, or unset {names.ca}"
        if not _speaks_tls(address, timeout_s):
            return None
        if tls.certificate is None:
            return f"{who} asks for a client certificate: name one, and its key, in {names.certificate} and {names.key}"
        return (
            f"{who} does not accept the certificate {tls.certificate} ({_reason(error)}): "
            "have one issued by an authority that it was told to accept"
        )
    return None


def _greet(address: str, context: ssl.SSLContext, timeout_s: float) -> None:
    """TLS, then a word each: a server that minds the client's certificate says so only after the handshake."""
    with _connect(address, timeout_s) as opened, context.wrap_socket(opened, server_hostname=host_of(address)) as secured:
        secured.sendall(_PREFACE)
        if not secured.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


def _unaccepted(
    error: ssl.SSLCertVerificationError, address: str, tls: ClientTls, who: str, names: Names, timeout_s: float
) -> str:
    if error.verify_code in (_WRONG_NAME, _WRONG_ADDRESS):
        context = tls.context()
        context.check_hostname = False
        with _connect(address, timeout_s) as opened, context.wrap_socket(opened) as secured:
            certificate = secured.getpeercert() or {}
        alternatives: Any = certificate.get("subjectAltName", ())
        named = ", ".join(value for _, value in alternatives) or "no name at all"
        return (
            f"the certificate of {who} is for {named}, not for {host_of(address)}: reach it by a name that its certificate "
            "has, or issue one for this name"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"the certificate of {who} is refused: {error.verify_message}; renew it there, or set this host's clock"
    return (
        f"the certificate of {who} does not come from the authority in {names.ca} ({tls.ca}): {error.verify_message}; "
        "name the authority that issued it"
    )


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or str(error)).lower()
