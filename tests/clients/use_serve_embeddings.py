# SPDX-License-Identifier: MIT
"""Tests `eaglecpp serve` with a real embedding model (all-MiniLM-L6-v2, from a package on PyPI) and common
retrieval clients: openai, ollama, LangChain. The vectors must equal llama_cpp's.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path

import llama_cpp
import numpy as np
import ollama
import openai
import pytest
from common import done
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from serving import serving

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.tiny_bert import convert_bert

MODEL = "minilm"
TEXTS = [
    "The cat sleeps on the sofa.",
    "Interest rates rose again in March.",
    "Bake the bread for forty minutes.",
]
ASKED = "How long does a loaf stay in the oven?"  # this question and the third text have no word in common


def same(found: object, expected: np.ndarray) -> None:
    """Compares two vectors of length 1."""
    cosines = (np.asarray(found) * expected).sum(axis=-1)
    assert (cosines >= 0.9999).all() and (cosines <= 1.0001).all(), cosines


with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(str(files("all_minilm_l6_v2") / "model.zip")) as packed:
        packed.extractall(folder)
    path = convert_bert(Path(folder), Path(folder, f"{MODEL}.gguf"))
    theirs = np.array(llama_cpp.Llama(str(path), embedding=True, verbose=False).embed(TEXTS, normalize=True))
    with serving(model=str(path)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", timeout=300, max_retries=0) as client:
            # Without encoding_format, the openai client requests base64.
            for encoding in ({}, {"encoding_format": "float"}):
                answer = client.embeddings.create(model=MODEL, input=TEXTS, **encoding)
                same([one.embedding for one in answer.data], theirs)
                assert answer.usage.prompt_tokens > len(TEXTS)
            assert len(client.embeddings.create(model=MODEL, input="x", dimensions=8).data[0].embedding) == 8
            for wrong, kind in (
                ({"input": "word " * 600}, openai.BadRequestError),
                ({"input": ""}, openai.BadRequestError),
                ({"input": "x", "dimensions": 9999}, openai.BadRequestError),
            ):
                with pytest.raises(kind):
                    client.embeddings.create(**{"model": MODEL, **wrong})
        client = ollama.Client(host=url, timeout=300)
        same(client.embed(MODEL, TEXTS).embeddings, theirs)
        same(client.embeddings(MODEL, TEXTS[0]).embedding, theirs[0])
        assert client.embed(MODEL, "word " * 600).prompt_eval_count == 512
        with pytest.raises(ollama.ResponseError, match=r"602.*400"):
            client.embed(MODEL, "word " * 600, truncate=False)
        assert "embedding" in client.show(MODEL).capabilities

        for embeddings in (
            OpenAIEmbeddings(
                model=MODEL, base_url=f"{url}/v1", api_key="x", check_embedding_ctx_length=False
            ),
            OllamaEmbeddings(model=MODEL, base_url=url),
        ):
            same(embeddings.embed_documents(TEXTS), theirs)
            store = InMemoryVectorStore(embeddings)
            store.add_texts(TEXTS)
            assert store.similarity_search(ASKED, k=1)[0].page_content == TEXTS[2]
done("openai, ollama, LangChain with a search; llama_cpp's vectors")
