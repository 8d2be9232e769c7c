#!/usr/bin/env python3
"""Writes the keys and values of the attention layers of a trained model, as float32.

    pip install numpy; pip download --no-deps antiberty==0.1.3
    python3 lab/kv/trained.py antiberty-0.1.3-py3-none-any.whl kv.f32 --tokens 4096
    kvmem-lab bench codec --values kv.f32

Two packages ship the weights of a transformer: antiberty 0.1.3 (BERT, 8 layers of 8 heads of 64,
trained on the sequences of antibodies) and rxnmapper (ALBERT, 12 passes of 8 heads of 32, trained
on chemical reactions, MIT license). Both are small, and encoders; their attention is that of any
transformer without rotation of the keys. `--rotate` rotates the keys that it writes as a model with
rotary embeddings would (base 10000, pairs of the two halves of a head); the model itself computes
without. The script reads the wheel and runs the model in numpy; neither the package nor torch is
imported. The order of the file is layer, K and V, token, channel.

The first layer is left out. Its keys and values follow from a token and its position alone, and the
vocabularies have 25 and 591 tokens: most rows are there several times, as in no cache of a language
model.
"""

import argparse
import collections
import io
import pickle
import random
import re
import struct
import zipfile

import numpy as np

DTYPES = {"FloatStorage": "<f4", "LongStorage": "<i8", "HalfStorage": "<f2"}
ANTIBODIES = [
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLY"
    "LQMNSLRAEDTAVYYCAKDRGYYYYGMDVWGQGTTVTVSS",
    "QVQLVQSGAEVKKPGSSVKVSCKASGGTFSSYAISWVRQAPGQGLEWMGGIIPIFGTANYAQKFQGRVTITADESTSTAY"
    "MELSSLRSEDTAVYYCARGGYSSGWYFDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQP"
    "EDFATYYCQQSYSTPLTFGQGTKVEIK",
]
MOLECULES = (
    "CC(=O)Oc1ccccc1C(=O)O CN1C=NC2=C1C(=O)N(C(=O)N2C)C CC(C)Cc1ccc(cc1)C(C)C(=O)O "
    "c1ccccc1 CCO CO CC(=O)Nc1ccc(O)cc1 O=C(O)c1ccccc1O CC(=O)OC(C)=O CCN(CC)CC ClCCl "
    "C1CCOC1 CN(C)C=O O=S(=O)(O)O Brc1ccccc1 OB(O)c1ccccc1 c1ccc(cc1)-c1ccccc1 NCc1ccccc1 "
    "O=C(Cl)c1ccccc1 O=C(NCc1ccccc1)c1ccccc1"
).split()
SMILES = re.compile(r"\[[^\]]+]|Br|Cl|>>?|%\d\d|.")


class Storages(pickle.Unpickler):
    """Reads a state of tensors and nothing else: any other class is an error."""

    def __init__(self, file, load):
        super().__init__(file)
        self.load_storage = load

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, size, stride, *_: (storage, offset, size, stride)
        if name in DTYPES:
            return DTYPES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a tensor")

    def persistent_load(self, pid):
        return self.load_storage(pid[1], pid[2])


def tensors(data):
    """Returns the tensors of a file that torch.save wrote, in its new or its old form."""
    storages = {}
    if zipfile.is_zipfile(io.BytesIO(data)):
        archive = zipfile.ZipFile(io.BytesIO(data))
        root = archive.namelist()[0].split("/")[0]

        def load(dtype, key):
            if key not in storages:
                storages[key] = np.frombuffer(archive.read(f"{root}/data/{key}"), dtype)
            return key

        state = Storages(io.BytesIO(archive.read(f"{root}/data.pkl")), load).load()
    else:
        file = io.BytesIO(data)
        for _ in range(3):
            Storages(file, None).load()
        dtypes = {}
        state = Storages(file, lambda dtype, key: dtypes.setdefault(key, dtype) and key).load()
        for key in Storages(file, None).load():
            count = struct.unpack("<q", file.read(8))[0]
            dtype = np.dtype(dtypes[key])
            storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return {
        name: np.lib.stride_tricks.as_strided(
            storages[key][offset:], size, [it * storages[key].itemsize for it in stride]
        )
        for name, (key, offset, size, stride) in state.items()
    }


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class Model:
    HEADS = 8

    def __init__(self, wheel):
        archive = zipfile.ZipFile(wheel)
        names = {name.rsplit("/", 1)[1]: name for name in archive.namelist() if "models/" in name}
        self.weights = tensors(archive.read(names["pytorch_model.bin"]))
        self.vocabulary = archive.read(names["vocab.txt"]).decode().split("\n")
        self.albert = any(name.startswith("albert.") for name in self.weights)
        self.layers = 12 if self.albert else 8

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def sequence(self):
        """Returns the tokens of an antibody with every tenth residue changed, or of a reaction."""
        if self.albert:
            some = [random.choice(MOLECULES) for _ in range(random.randint(4, 9))]
            tokens = SMILES.findall(".".join(some[:-2]) + ">>" + ".".join(some[-2:]))
        else:
            tokens = list(random.choice(ANTIBODIES))
            for at in random.sample(range(len(tokens)), len(tokens) // 10):
                tokens[at] = random.choice("ACDEFGHIKLMNPQRSTVWY")
        known = [token for token in tokens if token in self.vocabulary]
        return [self.vocabulary.index(token) for token in ["[CLS]", *known, "[SEP]"]]

    def keys_and_values(self, tokens):
        """Returns K and V of each layer."""
        base = "albert" if self.albert else "bert"
        embedding = self.weights[f"{base}.embeddings.word_embeddings.weight"][tokens]
        embedding = embedding + self.weights[f"{base}.embeddings.position_embeddings.weight"][
            : len(tokens)
        ]
        embedding = embedding + self.weights[f"{base}.embeddings.token_type_embeddings.weight"][0]
        x = self.norm(f"{base}.embeddings.LayerNorm", embedding)
        if self.albert:
            x = self.linear("albert.encoder.embedding_hidden_mapping_in", x)
        for layer in range(self.layers):
            if self.albert:
                name = "albert.encoder.albert_layer_groups.0.albert_layers.0."
                parts = ["attention.", "attention.dense", "attention.LayerNorm", "ffn"]
                parts += ["ffn_output", "full_layer_layer_norm"]
            else:
                name = f"bert.encoder.layer.{layer}."
                parts = ["attention.self.", "attention.output.dense", "attention.output.LayerNorm"]
                parts += ["intermediate.dense", "output.dense", "output.LayerNorm"]
            attention, dense, norm, up, down, last = [name + part for part in parts]
            q, k, v = [self.linear(attention + it, x) for it in ("query", "key", "value")]
            yield k, v
            q, k, v = [it.reshape(len(x), self.HEADS, -1).transpose(1, 0, 2) for it in (q, k, v)]
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            mixed = mixed.transpose(1, 0, 2).reshape(x.shape)
            x = self.norm(norm, x + self.linear(dense, mixed))
            x = self.norm(last, x + self.linear(down, gelu(self.linear(up, x))))


def rotate(keys, heads):
    """Returns keys of the tokens 0, 1, … rotated by their positions."""
    x, y = np.split(keys.reshape(len(keys), heads, -1), 2, axis=-1)
    frequencies = 10000.0 ** (-np.arange(x.shape[-1]) / x.shape[-1])
    angles = np.arange(len(keys))[:, None, None] * frequencies
    sin, cos = np.sin(angles), np.cos(angles)
    return np.concatenate([x * cos - y * sin, y * cos + x * sin], axis=-1).reshape(keys.shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", help="antiberty 0.1.3 or rxnmapper")
    parser.add_argument("output", help="file to write")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the cache")
    parser.add_argument("--rotate", action="store_true", help="rotate the keys by their positions")
    args = parser.parse_args()
    random.seed(1)
    model = Model(args.wheel)
    layers = [([], []) for _ in range(model.layers)]
    left = args.tokens
    while left > 0:
        for (keys, values), (k, v) in zip(layers, model.keys_and_values(model.sequence())):
            keys.append((rotate(k, model.HEADS) if args.rotate else k)[:left])
            values.append(v[:left])
        left -= len(layers[0][0][-1])
    with open(args.output, "wb") as output:
        for tensor in (tensor for layer in layers[1:] for tensor in layer):
            output.write(np.concatenate(tensor).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
