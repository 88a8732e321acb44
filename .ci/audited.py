"""Reads pip-audit's answer: exit 0 if there is no vulnerability, 1 if there are some, 3 without an answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    try:
        found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["dependencies"]
    except (OSError, ValueError, KeyError):
        return 3
    skipped = [package["name"] for package in found if "skip_reason" in package]
    known = [(package, vulnerability) for package in found for vulnerability in package.get("vulns", ())]
    for package, vulnerability in known:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    print(
        f"audit: {len(found) - len(skipped)} of {len(found)} packages asked about, {len(known)} known vulnerabilities"
    )
    return 1 if known else 3 if skipped or not found else 0


if __name__ == "__main__":
    sys.exit(main())
