#!/usr/bin/env bash
# site.sh: mkdocs writes the site of docs/ without a warning: every link leads to a page, a file or a heading that is there (--strict and
# cmake/site/links.py), and every page is in the navigation. A link that leads nowhere is found. The site can be searched as a folder.
# Skipped (77) without mkdocs.
# Environment: LOCKSTEP_SOURCE_DIR.
set -euo pipefail
if [[ $(mkdocs build --help 2>/dev/null) != *material* ]]; then  # the themes that it has
  echo "SKIPPED: mkdocs and mkdocs-material are not installed"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
site() { mkdocs build --strict -f "$1/mkdocs.yml" -d "$scratch/site" >"$scratch/log" 2>&1; }

site "$LOCKSTEP_SOURCE_DIR" || { echo "FAILED:"; cat "$scratch/log"; exit 1; }
sed -n '/not included in the "nav"/,/^[A-Z]/s/^  - //p' "$scratch/log" >"$scratch/unnamed"
while read -r page; do
  [ ! -e "$LOCKSTEP_SOURCE_DIR/docs/$page" ] || { echo "FAILED: mkdocs.yml does not name $page"; exit 1; }
done <"$scratch/unnamed"
/usr/bin/python3 "$LOCKSTEP_SOURCE_DIR/tests/docs/search.py" "$scratch/site" requeue || { echo "FAILED: the search from a folder"; exit 1; }

# The same with a page whose links lead nowhere.
mkdir "$scratch/broken"
for part in README.md INSTALL LICENSE CHANGELOG.md CONTRIBUTING.md mkdocs.yml cmake docs include share src tests; do
  cp -r "$LOCKSTEP_SOURCE_DIR/$part" "$scratch/broken/"
done
for link in nowhere.md cli.md#no-such-verb ../share/nothing.cpp; do
  cp "$LOCKSTEP_SOURCE_DIR/docs/glossary.md" "$scratch/broken/docs/glossary.md"
  echo "A [link]($link)." >>"$scratch/broken/docs/glossary.md"
  ! site "$scratch/broken" || { echo "FAILED: a link to $link is not found"; exit 1; }
done
