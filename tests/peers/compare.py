"""Runs lgreco and the published method on the same gradients, and prints both results as Markdown."""

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
LONGEST_SECONDS = 20


def parse_option(label):
    method, _, parameter = label.partition(" ")
    if method == "dense":
        return method, None
    if method == "topk":
        return method, float(parameter.removesuffix("%")) / 100
    return method, int(parameter)


def fastest(call):
    """Calls `call` several times, for up to about 20 s. Returns its result and the shortest time."""
    times = []
    while len(times) < REPEATS and sum(times) < LONGEST_SECONDS:
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
        """The plan, with the shortest times of several runs."""
        plans = [self.json("plan", file, "--method", method) for _ in range(REPEATS)]
        plans[0]["seconds"] = {key: min(plan["seconds"][key] for plan in plans) for key in ("measure", "solve")}
        return plans[0]


def total(rows, plan):
    return sum(row[option] for row, option in zip(rows, plan))


def ratio(bits, sizes, plan):
    return f"{bits / total(sizes, plan):.2f}×" if plan else "no plan"


def percent_of(budget, errors, plan):
    return f"{100 * total(errors, plan) / budget:.2f} %" if plan else "–"


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

    def simulated_table():
        torch.manual_seed(0)
        return published.table(gradients, options)

    errors, table_seconds = fastest(simulated_table)
    budget = total(errors, defaults)
    plan, plan_seconds = fastest(lambda: published.algorithm_1(sizes, errors, budget))
    same_table = published.algorithm_1(sizes, our_errors, ours["budget"])

    (_, best, proven), best_seconds = fastest(
        lambda: optimum.optimum(sizes, our_errors, ours["budget"], threads)
    )
    default_size = total(sizes, defaults)
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
        "faster": f"{table_seconds / ours['seconds']['measure']:.1f}×",
        "plan, NumPy": f"{plan_seconds * 1e3:.1f} ms",
        "plan, lgreco": f"{ours['seconds']['solve'] * 1e3:.2f} ms",
        "uniform": f"{bits / default_size:.2f}×",
        "published": ratio(bits, sizes, plan),
        "its error": percent_of(ours["budget"], our_errors, plan),
        "Algorithm 1, our table": ratio(bits, sizes, same_table),
        "lgreco": f"{bits / ours['size']:.2f}×",
        "its error ": f"{100 * ours['error'] / ours['budget']:.2f} %",
        "HiGHS' optimum": verdict + ("" if proven else " (time limit)"),
        "HiGHS": f"{best_seconds:.2f} s",
    }, rows(method, gradients, options, our_errors, errors) | {
        "gradients": os.path.basename(file).removesuffix(".safetensors"), "method": method
    }


def least_squares(method, gradient):
    """For every i, the smallest possible squared error with i kept elements (TopK) or rank i (PowerSGD), in f64."""
    if method == "topk":
        squares = gradient.view(-1).double().square().sort(descending=True).values
    elif method == "powersgd":
        squares = torch.linalg.svdvals(gradient.view(gradient.shape[0], -1).double()).square()
    else:
        return []
    return squares.flip(0).cumsum(0).flip(0)


def rows(method, gradients, options, ours, theirs):
    """Relative deviations of our measured errors from PyTorch's. Leaves out entries that are zero on either side."""
    deviations, above_least = [], []
    for gradient, row, our_row, their_row in zip(gradients, options, ours, theirs):
        least = least_squares(method, gradient)
        for (kind, parameter), our_error, their_error in zip(row, our_row, their_row):
            if kind == "dense" or min(our_error, their_error) == 0:
                continue
            deviations.append(our_error / their_error - 1)
            number = published.kept(parameter, gradient.numel()) if kind == "topk" else parameter
            if number < len(least) and least[number] > 0:
                above_least.append(our_error / math.sqrt(least[number].item()) - 1)
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
        "ours above the least": f"{percent(min(above_least))} … {percent(max(above_least))}" if above_least else "–",
    }


def markdown(records, first):
    keys = first + [key for key in records[0] if key not in first]
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return "\n".join(lines + ["| " + " | ".join(record[key] for key in keys) + " |" for record in records])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lgreco", required=True, help="the command")
    parser.add_argument("--sample", required=True, help="what is compared when no file is named")
    parser.add_argument("--threads", type=int, default=1, help="threads of every program, default 1")
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
    print(f"PyTorch {torch.__version__}; threads on every side: {arguments.threads}\n")
    print(markdown([speed for speed, _ in results], ["gradients", "method"]))
    print("\nOur rows against PyTorch's, relative deviation of each error:\n")
    print(markdown([rows for _, rows in results], ["gradients", "method"]))


main()
