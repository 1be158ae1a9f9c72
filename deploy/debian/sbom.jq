# The bill of materials in CycloneDX 1.5, from the output of `cargo metadata`. $crates has a line "NAME VERSION" for each crate that is
# linked, $lock is Cargo.lock, $version is the version of the product.
def checksums:
  [$lock | split("[[package]]")[] |
    capture("name = \"(?<name>[^\"]+)\"\nversion = \"(?<version>[^\"]+)\"\n.*checksum = \"(?<sum>[0-9a-f]{64})\""; "m") |
    {key: "\(.name) \(.version)", value: .sum}] | from_entries;
checksums as $sums |
([$crates | split("\n")[] | select(. != "") | {key: ., value: true}] | from_entries) as $linked |
{
  bomFormat: "CycloneDX",
  specVersion: "1.5",
  version: 1,
  metadata: {
    component: {type: "application", "bom-ref": "switchyard", name: "switchyard", version: $version,
      licenses: [{expression: "Apache-2.0"}]}
  },
  components: [.packages[] | select(.source != null) | "\(.name) \(.version)" as $id | select($linked[$id]) | {
    type: "library",
    "bom-ref": "pkg:cargo/\(.name)@\(.version)",
    name,
    version,
    purl: "pkg:cargo/\(.name)@\(.version)"
  } + (if .license then {licenses: [{expression: (.license | gsub("/"; " OR "))}]} else {} end)
    + (if $sums[$id] then {hashes: [{alg: "SHA-256", content: $sums[$id]}]} else {} end)]
}
