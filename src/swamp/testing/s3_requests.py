"""S3's requests as effects on a bucket, and their answers: paths, queries, XML, ranges."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from swamp.env import rfc3339
from swamp.testing.s3_bucket import BucketPage, Manners, S3Bucket, S3Refusal, Stored, checked

_XMLNS: Final = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    key: str
    """The object's key; the prefix of a listing; empty for the bucket."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def condition(self) -> str | None:
        """`*`, or the ETag that it matches on: what makes a write conditional."""
        return self.headers.get("if-none-match") or self.headers.get("if-match")


@dataclass(frozen=True)
class Told:
    """One answer."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    """Of the object, where the body is not sent (HEAD)."""


def act(buckets: Mapping[str, S3Bucket], name: str, asked: Asked, stale: bool) -> Told:
    """What the bucket `name` does about a request, and answers. Raises S3Refusal."""
    if name not in buckets:
        raise S3Refusal(404, "NoSuchBucket", "The specified bucket does not exist")
    bucket, query = buckets[name], asked.query
    if asked.method == "GET" and "list-type" in query:
        return _listed(name, bucket, query, stale)
    if asked.method == "POST" and "delete" in query:
        return _deleted(bucket, asked)
    if "uploads" in query or "uploadId" in query:
        return _in_parts(name, bucket, asked)
    if not asked.key and asked.method in ("PUT", "HEAD", "GET"):
        return Told(200)
    return _on_object(bucket, asked, stale)


def _on_object(bucket: S3Bucket, asked: Asked, stale: bool) -> Told:
    if "x-amz-copy-source" in asked.headers:
        raise S3Refusal(501, "NotImplemented")
    if asked.method == "PUT":
        done = bucket.put(asked.key, checked(asked.body, asked.headers.get("content-md5")), asked.headers)
        return Told(200, {"ETag": f'"{done.etag}"'})
    if asked.method == "DELETE":
        bucket.delete(asked.key, asked.headers)
        return Told(204)
    if asked.method in ("GET", "HEAD"):
        return _read(bucket, asked, stale)
    raise S3Refusal(405, "MethodNotAllowed")


def _read(bucket: S3Bucket, asked: Asked, stale: bool) -> Told:
    found = bucket.read(asked.key, asked.headers, stale=stale)
    headers = {
        "ETag": f'"{found.etag}"',
        "Last-Modified": format_datetime(found.modified.replace(microsecond=0), usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    if asked.method == "HEAD":
        return Told(200, headers, length=len(found.body))
    span = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range") or "")
    if span is None or not (span[1] or span[2]) or not bucket.manners.ranges:
        return Told(200, headers, found.body)
    return _range(found, headers, span[1], span[2])


def _range(found: Stored, headers: dict[str, str], first: str, last: str) -> Told:
    size = len(found.body)
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if begin >= size:
        raise S3Refusal(416, "InvalidRange", "The requested range is not satisfiable")
    headers["Content-Range"] = f"bytes {begin}-{end}/{size}"
    return Told(206, headers, found.body[begin : end + 1])


def _listed(name: str, bucket: S3Bucket, query: Mapping[str, str], stale: bool) -> Told:
    limit = int(query.get("max-keys") or 1000)
    begin = unquote(query.get("continuation-token", ""))
    after = "" if begin else query.get("start-after", "")
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    page = bucket.list(prefix, delimiter, after, limit, begin=begin, stale=stale)
    return _document("ListBucketResult", _rows(name, prefix, page, query.get("encoding-type") == "url"))


def _rows(name: str, prefix: str, page: BucketPage, encoded: bool) -> str:
    def shown(key: str) -> str:
        return quote(key) if encoded else escape(key)

    rows = [f"<Name>{name}</Name><Prefix>{shown(prefix)}</Prefix>"]
    rows += [f"<KeyCount>{len(page.objects) + len(page.folders)}</KeyCount>"]
    rows += [f"<IsTruncated>{'true' if page.following is not None else 'false'}</IsTruncated>"]
    rows += ["<EncodingType>url</EncodingType>"] if encoded else []
    if page.following is not None:
        rows.append(f"<NextContinuationToken>{quote(page.following, safe='')}</NextContinuationToken>")
    rows += [
        f"<Contents><Key>{shown(key)}</Key><LastModified>{rfc3339(found.modified)}</LastModified>"
        f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.body)}</Size></Contents>"
        for key, found in page.objects
    ]
    rows += [f"<CommonPrefixes><Prefix>{shown(folder)}</Prefix></CommonPrefixes>" for folder in page.folders]
    return "".join(rows)


def _deleted(bucket: S3Bucket, asked: Asked) -> Told:
    rows = []
    for key in _texts(checked(asked.body, asked.headers.get("content-md5")), "Key"):
        bucket.delete(key, {})
        rows.append(f"<Deleted><Key>{escape(key)}</Key></Deleted>")
    return _document("DeleteResult", "".join(rows))


def _in_parts(name: str, bucket: S3Bucket, asked: Asked) -> Told:
    identity = asked.query.get("uploadId", "")
    if asked.method == "POST" and "uploads" in asked.query:
        begun = bucket.begin(asked.key)
        row = f"<Bucket>{name}</Bucket><Key>{escape(asked.key)}</Key><UploadId>{begun}</UploadId>"
        return _document("InitiateMultipartUploadResult", row)
    if asked.method == "PUT":
        etag = bucket.part(identity, int(asked.query["partNumber"]), asked.body)
        return Told(200, {"ETag": f'"{etag}"'})
    if asked.method == "DELETE":
        bucket.abort(identity)
        return Told(204)
    if asked.method == "POST":
        numbers = map(int, _texts(asked.body, "PartNumber"))
        done = bucket.complete(identity, zip(numbers, _texts(asked.body, "ETag"), strict=True), asked.headers)
        row = f"<Bucket>{name}</Bucket><Key>{escape(asked.key)}</Key><ETag>&quot;{done.etag}&quot;</ETag>"
        return _document("CompleteMultipartUploadResult", row)
    raise S3Refusal(501, "NotImplemented")


def _texts(document: bytes, name: str) -> list[str]:
    try:
        top = xml.fromstring(document)
    except xml.ParseError as error:
        raise S3Refusal(400, "MalformedXML", str(error)) from None
    return [node.text or "" for node in top.iter() if node.tag.rpartition("}")[2] == name]


def _document(name: str, rows: str) -> Told:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} {_XMLNS}>{rows}</{name}>'
    return Told(200, {"Content-Type": "application/xml"}, body.encode())


def refusal(no: S3Refusal) -> Told:
    """An S3 error document."""
    if no.status == 304:
        return Told(304)
    rows = f"<Code>{no.code}</Code><Message>{escape(no.message)}</Message><RequestId>REQ-DOUBLE</RequestId>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{rows}</Error>'
    return Told(no.status, {"Content-Type": "application/xml"}, body.encode())


def as_if(asked: Asked) -> Told:
    """The answer of a store that did what it was asked for, by one that did not."""
    bucket = S3Bucket(manners=Manners(conditions="ignored"))
    try:
        return act({"b": bucket}, "b", asked, False)
    except S3Refusal as no:
        return refusal(no)


def unchunked(body: bytes) -> bytes:
    """What was sent in signed chunks, as newer clients of Amazon do."""
    whole = b""
    while body:
        head, _, rest = body.partition(b"\r\n")
        size = int(head.partition(b";")[0] or b"0", 16)
        if size == 0:
            break
        whole, body = whole + rest[:size], rest[size + 2 :]
    return whole
