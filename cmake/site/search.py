"""A hook of mkdocs: the site can be searched as a folder, without a server.

A page of file:// may neither fetch the index nor start a worker from a file. search/offline.js, which
theme/main.html loads there, has both as texts. (Material has a plugin `offline` for this from version 9 on.)
"""
import json
from pathlib import Path


def on_post_build(config):
    site = Path(config["site_dir"])
    index = json.loads((site / "search/search_index.json").read_text())
    worker = next(site.glob("assets/javascripts/workers/search.*.min.js")).read_text()
    (site / "search/offline.js").write_text(
        f"window.__search = {{index: Promise.resolve({json.dumps(index)})}};\n"
        f"const searchWorker = {json.dumps(worker)};\n"
        "window.Worker = class extends Worker {\n"
        "  constructor() { super(URL.createObjectURL(new Blob([searchWorker], {type: 'text/javascript'}))); }\n"
        "};\n")
