//! Texts and numbers that a client may send, though no kubelet does.

use std::collections::BTreeMap;

use proptest::prelude::*;

/// Texts with a special meaning: paths, separators, control bytes, the edges of UTF-8 and of limits.
const TEXTS: [&str; 28] = [
    "",
    "a",
    ".",
    "..",
    "/",
    "//",
    "a/b",
    "../../etc/passwd",
    "/proc/self/fd/0",
    "\0",
    "a\0b",
    "\n",
    "a\r\nb",
    "\t",
    " ",
    "\"",
    "'",
    "a;b=c",
    "a=b",
    "-rf",
    "${x}",
    "%s%n",
    "é",
    "\u{202e}x",
    "\u{fffd}",
    "\u{10ffff}",
    "\u{feff}",
    "{id}",
];

/// Lengths at the edges of limits.
const LENGTHS: [usize; 14] = [
    1, 62, 63, 64, 65, 127, 128, 129, 253, 254, 255, 256, 4096, 65_536,
];

/// A text that is likely to break something.
pub(super) fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        4 => prop::sample::select(&TEXTS[..]).prop_map(str::to_owned),
        2 => (prop::sample::select(&LENGTHS[..]), prop::sample::select(&["a", "é", "\0", "/"][..]))
            .prop_map(|(length, piece)| piece.repeat(length / piece.len())),
        1 => "\\PC{0,40}",
        1 => any::<String>(),
    ]
}

/// A name. Most are valid, so that calls succeed, and there are few, so that they collide.
pub(super) fn name() -> impl Strategy<Value = String> + Clone {
    prop_oneof![4 => "[a-c]", 1 => text()]
}

/// A field that is empty most of the time.
pub(super) fn seldom() -> impl Strategy<Value = String> + Clone {
    prop_oneof![6 => Just(String::new()), 1 => text()]
}

/// A number at an edge.
pub(super) fn number() -> impl Strategy<Value = i64> + Clone {
    let edges = [
        0,
        1,
        -1,
        2,
        100,
        1000,
        100_000,
        i64::from(i32::MAX),
        i64::from(u32::MAX),
        i64::MAX,
        i64::MIN,
    ];
    prop_oneof![4 => Just(0), 2 => prop::sample::select(edges.to_vec()), 1 => any::<i64>()]
}

/// A number of an enum value, known or not.
pub(super) fn choice() -> impl Strategy<Value = i32> + Clone {
    prop_oneof![6 => Just(0), 3 => 0..5, 1 => prop::sample::select(vec![-1, 99, i32::MAX, i32::MIN])]
}

/// Labels, or annotations.
pub(super) fn labels() -> impl Strategy<Value = BTreeMap<String, String>> + Clone {
    let reserved = [
        "io.kubernetes.pod.name",
        "containerd.io/restart.status",
        "io.containerd.runc.v2.group",
        "switchyard.io/owner",
        "io.kubernetes.cri.sandbox-id",
        "kubernetes.io/ingress-bandwidth",
    ];
    let key = prop_oneof![2 => text(), 1 => prop::sample::select(reserved.to_vec()).prop_map(str::to_owned)];
    prop::collection::btree_map(key, text(), 0..4)
}
