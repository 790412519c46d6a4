"""Runs lgreco and the published method on the same gradients and prints both, in Markdown."""

import argparse
import json
import math
import os
import subprocess
import time

import torch
from safetensors.torch import load_file

import optimum
import published

METHODS = ["qsgd", "topk", "powersgd"]
REPEATS = 3


def parse_option(label):
    method, _, parameter = label.partition(" ")
    if method == "dense":
        return method, None
    if method == "topk":
        return method, float(parameter.removesuffix("%")) / 100
    return method, int(parameter)


def fastest(repeats, call):
    """The result of `call` and the least time it took."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return result, min(times)


class Lgreco:
    def __init__(self, command, threads):
        self.command, self.environment = command, os.environ | {"RAYON_NUM_THREADS": str(threads)}

    def json(self, *arguments):
        run = [self.command, *arguments, "--json", "-"]
        return json.loads(subprocess.run(run, check=True, capture_output=True, env=self.environment).stdout)

    def plan(self, file, method):
        """The plan, with the least times of several runs."""
        plans = [self.json("plan", file, "--method", method) for _ in range(REPEATS)]
        plans[0]["seconds"] = {key: min(plan["seconds"][key] for plan in plans) for key in ("measure", "solve")}
        return plans[0]


def compare(lgreco, file, method, threads):
    table, ours = lgreco.json("measure", file, "--method", method)["layers"], lgreco.plan(file, method)
    tensors = load_file(file)
    gradients = [tensors[layer["name"]].float().contiguous() for layer in table]
    options = [[parse_option(option["label"]) for option in layer["options"]] for layer in table]
    sizes = [[option["size"] for option in layer["options"]] for layer in table]
    our_errors = [[option["error"] for option in layer["options"]] for layer in table]
    defaults = [layer["default"] for layer in table]
    elements = sum(gradient.numel() for gradient in gradients)
    bits = sum(8 * tensors[layer["name"]].element_size() * layer["elements"] for layer in table)

    published.table(gradients[:1], options[:1])  # PyTorch's first calls are slow
    torch.manual_seed(0)
    errors, table_seconds = fastest(1, lambda: published.table(gradients, options))
    budget = sum(row[default] for row, default in zip(errors, defaults))
    plan, plan_seconds = fastest(REPEATS, lambda: published.algorithm_1(sizes, errors, budget))
    published_size = sum(row[option] for row, option in zip(sizes, plan)) if plan else math.nan

    (_, best, proven), best_seconds = fastest(1, lambda: optimum.optimum(sizes, our_errors, ours["budget"], threads))
    default_size = sum(row[default] for row, default in zip(sizes, defaults))
    assert default_size == ours["default_size"]
    verdict = "ours" if best == ours["size"] else f"{best - ours['size']:+} bits"
    verdict += "" if ours["proven"] else ", ours unproven"
    return {
        "gradients": os.path.basename(file).removesuffix(".safetensors"),
        "method": method,
        "elements": f"{elements / 1e6:.2f} M",
        "layers × options": f"{len(table)} × {max(map(len, options))}",
        "table, PyTorch": f"{table_seconds:.3f} s",
        "table, lgreco": f"{ours['seconds']['measure']:.4f} s",
        "faster": f"{table_seconds / ours['seconds']['measure']:.0f}×",
        "plan, NumPy": f"{plan_seconds * 1e3:.1f} ms",
        "plan, lgreco": f"{ours['seconds']['solve'] * 1e3:.2f} ms",
        "uniform": f"{bits / default_size:.2f}×",
        "published": f"{bits / published_size:.2f}×",
        "lgreco": f"{bits / ours['size']:.2f}×",
        "smaller": f"{100 * (1 - ours['size'] / published_size):.2f} %",
        "HiGHS' optimum": verdict + ("" if proven else " (time limit)"),
        "HiGHS": f"{best_seconds:.2f} s",
    }, rows(method, gradients, options, our_errors, errors) | {
        "gradients": os.path.basename(file).removesuffix(".safetensors"), "method": method
    }


def rows(method, gradients, options, ours, theirs):
    """How far our rows are from PyTorch's: relative deviations of every entry that is not an exact zero."""
    deviations, above_svd = [], []
    for gradient, row, our_row, their_row in zip(gradients, options, ours, theirs):
        if method == "powersgd":
            squares = torch.linalg.svdvals(gradient.view(gradient.shape[0], -1).double()).square()
            tails = squares.flip(0).cumsum(0).flip(0)
        for (kind, parameter), our_error, their_error in zip(row, our_row, their_row):
            if kind == "dense" or max(our_error, their_error) == 0:
                continue
            deviations.append(our_error / their_error - 1)
            if method == "powersgd" and parameter < len(tails):
                above_svd.append(our_error / math.sqrt(tails[parameter].item()) - 1)
    size = len(deviations)
    mean = sum(deviations) / size
    spread = math.sqrt(sum((d - mean) ** 2 for d in deviations) / size)
    percent = lambda value: f"{100 * value:+.4f} %"
    return {
        "entries": str(size),
        "lowest": percent(min(deviations)),
        "mean": percent(mean),
        "highest": percent(max(deviations)),
        "standard deviation": percent(spread)[1:],
        "above the SVD's": f"{percent(min(above_svd))} … {percent(max(above_svd))}" if above_svd else "–",
    }


def markdown(records, first):
    keys = first + [key for key in records[0] if key not in first]
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return "\n".join(lines + ["| " + " | ".join(record[key] for key in keys) + " |" for record in records])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lgreco", required=True, help="the command")
    parser.add_argument("--sample", required=True, help="what is compared when no file is named")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of every program, default all cores")
    parser.add_argument("--methods", default=",".join(METHODS), help="of qsgd, topk, powersgd")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    lgreco = Lgreco(arguments.lgreco, arguments.threads)
    results = [
        compare(lgreco, file, method, arguments.threads)
        for file in arguments.files or [arguments.sample]
        for method in arguments.methods.split(",")
    ]
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads on every side\n")
    print(markdown([speed for speed, _ in results], ["gradients", "method"]))
    print("\nOur rows against PyTorch's, relative deviation of each error:\n")
    print(markdown([rows for _, rows in results], ["gradients", "method"]))


main()
