"""Certificates for tests, as files."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme

HOST = "127.0.0.1"


class Authority:
    """Issues certificates into a folder. `ca` is its own certificate's file."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._authority = trustme.CA(organization_name=name)
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, valid_days: int = 30) -> tuple[Path, Path]:
        """Files of a certificate and its key. `valid_days` below zero: it expired so long ago."""
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=valid_days)
        start = end - datetime.timedelta(days=365)
        issued = self._authority.issue_cert(*(names or (HOST,)), not_before=start, not_after=end)
        stem = f"{self._name}-{len(list(self._folder.iterdir()))}"
        certificate, key = self._folder / f"{stem}.crt", self._folder / f"{stem}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key
