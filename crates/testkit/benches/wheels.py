"""Writes small packages into a folder: wheels.py FOLDER COUNT."""

import sys
import zipfile

folder, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    name = f"package_{number}"
    info = f"{name}-1.0.dist-info"
    files = {f"{name}/__init__.py": "", f"{name}/data.txt": "x" * 4096}
    files |= {f"{name}/module_{part}.py": f"VALUE = {part}\n" * 50 for part in range(8)}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{folder}/{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
