# SPDX-License-Identifier: MIT
"""Fuzzes the Modelfile reader and printer: any bytes are a Modelfile that prints as itself, or refused."""

from __future__ import annotations

from atheris_target import fuzz, instrumented

with instrumented():
    from eaglecpp.modelfile import Modelfile, ModelfileError, format, parse, read

SEEDS = [
    'FROM a\nSYSTEM """x\ny"""\nPARAMETER stop "a b"\nMESSAGE user hi\n',
    "#eaglecpp: strategy chain:4\nFROM a\r\nPARAMETER temperature 0x1p-2\nREQUIRES 0.14.0\n",
    'FROM a\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER mirostat 1\nLICENSE "l"\n',
    'FROM a\nPARAMETER stop """"q""""\nPARAMETER stop \'s\'\nSYSTEM """"""\nMESSAGE assistant "\n"\n',
]
WORDS = [
    "FROM ", "PARAMETER ", "MESSAGE user ", "SYSTEM ", "TEMPLATE ", "DRAFT ", '"""', '"', '""""', "\r\n",
    "\u00a0", "stop ", "top_k ", "seed ", "temperature ", "use_mmap ", "#eaglecpp: ", "draft ", "type_k ",
    "rpc ", "tree:k=1,depth=1,nodes=1",
]  # fmt: skip


def test_one(data: bytes) -> None:
    try:
        document = read(data)
    except ModelfileError as error:
        assert str(error)
        return
    assert parse(data, strict=True) == list(document.commands)
    try:
        text = format(document.commands, document.pragmas)
    except ModelfileError:  # a value that cannot be written
        pass
    else:
        again = read(text)
        assert (again.commands, again.pragmas) == (document.commands, document.pragmas)
    try:
        modelfile = Modelfile.from_document(document)
        text = modelfile.to_text()
    except ModelfileError:  # a value of the wrong type, or one that cannot be written
        return
    assert Modelfile.from_text(text) == modelfile
    modelfile.engine_options()


if __name__ == "__main__":
    fuzz(test_one, SEEDS, WORDS)
