//! A scan that knows the last one finds the same as one that knows nothing.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

/// A change of the node.
#[derive(Debug, Clone)]
enum Change {
    /// A device node has this number now, or is gone.
    Node(u8, Option<u64>),
    /// A CDI spec file has these devices of a kind now, or is gone.
    File(u8, Option<(char, CdiDevices)>),
    /// A CDI spec file is malformed now.
    Damage(u8),
    Nothing,
}

/// The names of devices, with the numbers of their nodes.
type CdiDevices = BTreeMap<u8, Vec<u8>>;

fn any_change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![Just(None), (3_u64..6).prop_map(Some)];
    let nodes = prop_oneof![2 => Just(Vec::new()), 1 => vec(0_u8..3, 1..3)];
    let file = (
        prop_oneof![Just('a'), Just('b')],
        btree_map(0_u8..4, nodes, 1..4),
    );
    prop_oneof![
        (0_u8..3, number).prop_map(|(name, number)| Change::Node(name, number)),
        (0_u8..2, proptest::option::weighted(0.8, file))
            .prop_map(|(name, file)| Change::File(name, file)),
        (0_u8..2).prop_map(Change::Damage),
        Just(Change::Nothing),
    ]
}

impl DeviceTree {
    fn apply(&self, change: &Change) {
        match change {
            Change::Node(name, number) => {
                let name = format!("acme{name}");
                let _ = fs::remove_file(self.dev(&name));
                if let Some(number) = number {
                    self.char(&name, (1, *number));
                }
            }
            Change::File(name, None) => drop(fs::remove_file(self.spec(*name))),
            Change::File(name, Some((kind, devices))) => {
                let device = |(name, nodes): (&u8, &Vec<u8>)| {
                    let path = |node: &u8| {
                        format!(r#"{{"path":"{}"}}"#, self.pattern(&format!("acme{node}")))
                    };
                    let nodes = nodes.iter().map(path).collect::<Vec<_>>().join(",");
                    format!(
                        r#"{{"name":"{name}","containerEdits":{{"env":["A=1"],"deviceNodes":[{nodes}]}}}}"#
                    )
                };
                let devices = devices.iter().map(device).collect::<Vec<_>>().join(",");
                let text = r#"{"cdiVersion":"0.6.0","kind":"acme.com/KIND","devices":[DEVICES]}"#;
                self.replace(
                    *name,
                    &text
                        .replace("KIND", &kind.to_string())
                        .replace("DEVICES", &devices),
                );
            }
            Change::Damage(name) => self.replace(*name, "{"),
            Change::Nothing => {}
        }
    }

    fn spec(&self, name: u8) -> PathBuf {
        self.0.path().join(format!("cdi/{name}.json"))
    }

    /// Replaces a file by another one, as vendors do.
    fn replace(&self, name: u8, text: &str) {
        let new = self.0.path().join("cdi/new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.spec(name)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_scan_after_others_finds_what_a_first_one_finds(changes in vec(any_change(), 1..12)) {
        let node = DeviceTree::new();
        let of_kinds = |name: &str, kinds: &[&str]| Group {
            cdi: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..of_paths(name, &[])
        };
        let groups = vec![
            of_kinds("a", &["acme.com/a"]),
            of_paths("first", &[node.pattern("acme0")]),
            of_paths("all", &[node.pattern("acme*")]),
            of_kinds("b", &["acme.com/b"]),
            of_kinds("both", &["acme.com/b", "acme.com/a"]),
        ];
        let search = node.search(groups);
        let mut scanner = Scanner::new(search.clone());
        let mut last = scanner.scan();
        prop_assert_eq!(&last, &scan(&search));
        for change in changes {
            node.apply(&change);
            let found = scanner.scan();
            prop_assert_eq!(&found, &scan(&search), "after {:?}", change);
            for (group, before) in found.inventory.groups.iter().zip(&last.inventory.groups) {
                prop_assert_eq!(group == before, Arc::ptr_eq(group, before), "{:?}", change);
            }
            last = found;
        }
    }
}
