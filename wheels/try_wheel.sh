#!/usr/bin/env bash
# Installs the wheel in DIST into an empty environment in FOLDER and plans a real model with it, where
# no compiler can be found: PATH holds the environment alone, and CC and CXX fail. Nothing of the
# checkout is used. Usage: try_wheel.sh PYTHON DIST FOLDER
set -euo pipefail
python=$1 dist=$(realpath "$2") folder=$3

rm -rf "$folder"
"$python" -m venv "$folder"
folder=$(realpath "$folder")
export PATH="$folder/bin" CC=/bin/false CXX=/bin/false
for compiler in cc c++ gcc g++ clang clang++ cmake ninja; do
  if command -v "$compiler"; then
    echo "a compiler is still on PATH: $compiler" >&2
    exit 1
  fi
done

python -m pip install --quiet --only-binary :all: "$dist"/trainwright-*.whl
cd "$folder"
trainwright --version
trainwright plan llama3-70b --cluster dgx-h100 --nodes 8 --global-batch 512 --sequence 8192 \
  --framework megatron --top 0 -o plan.json
trainwright report plan.json -o report.html
trainwright export plan.json --to megatron -o job
python -c 'import trainwright, pathlib; print(pathlib.Path(trainwright.__file__).parent)'
