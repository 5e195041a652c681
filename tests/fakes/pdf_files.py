"""PDF files of nothing but text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def pdf_of(title: str, pages: Sequence[str]) -> bytes:
    """Return a PDF with one page for each text. Only Latin letters are supported.

    Source: ISO 32000-1:2008, section 7.
    """
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            _pdf_stream(text),
        ]
    objects.append(f"<< /Title ({_pdf_escaped(title)}) >>")
    return _pdf_file(objects)


def _pdf_stream(text: str) -> str:
    lines = "".join(f"({_pdf_escaped(line)}) Tj T*\n" for line in text.split("\n"))
    content = f"BT /F1 12 Tf 50 780 Td 16 TL\n{lines}ET"
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def _pdf_escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _pdf_file(objects: Sequence[str]) -> bytes:
    body = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    places = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size, info = len(objects) + 1, len(objects)
    body += (
        f"xref\n0 {size}\n0000000000 65535 f \n{places}"
        f"trailer\n<< /Size {size} /Root 1 0 R /Info {info} 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    ).encode("latin-1")
    return bytes(body)
