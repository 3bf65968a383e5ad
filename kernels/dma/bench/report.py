"""A report in the form that `baton bench gpu --save` writes: each row with its raw samples."""

import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys


def percentile(samples, share):
    """The sample that this share of all is not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name, what, unit, samples, value=None, note="", baseline=None):
    """One line: value is the samples' median unless it is given."""
    out = {"name": name, "what": what, "unit": unit, "value": statistics.median(samples) if value is None else value,
           "met": True, "samples": [round(s, 3) for s in samples]}
    if baseline:
        out["baseline"], out["baseline_unit"] = [round(s, 3) for s in baseline], unit
    if note:
        out["note"] = note
    return out


def commit():
    """The commit that the caller says, else that of the checkout."""
    if os.environ.get("BATON_COMMIT"):
        return os.environ["BATON_COMMIT"]
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Report:
    """Rows of one run, saved after each of them, so that a run that is cut short is not lost."""

    def __init__(self, path, machine, binary=""):
        self.path = path
        self.data = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "go": "", "cores": os.cpu_count(),
                     "cpu": machine, "command": "python3 " + " ".join(sys.argv), "commit": commit(), "rows": []}
        if binary:
            with open(binary, "rb") as f:
                self.data["binary"] = hashlib.file_digest(f, "sha256").hexdigest()

    def add(self, *rows):
        """Prints the rows and saves all there are."""
        for r in rows:
            print(f"{r['name']:40} {r['value']:12.2f} {r['unit']:14} {r.get('note', '')}", flush=True)
            self.data["rows"].append(r)
        if self.path:
            with open(self.path + ".new", "w", encoding="utf-8") as f:
                json.dump(self.data, f, indent=1)
                f.write("\n")
            os.replace(self.path + ".new", self.path)


def machine(torch):
    """What the numbers were measured on."""
    if not torch.cuda.is_available():
        return f"no GPU, torch {torch.__version__}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{torch.cuda.device_count()} {torch.cuda.get_device_name(0)}, torch {torch.__version__}, NCCL {nccl}"
