//! Tests of the schemas: that agents accept them, and that they agree with the decoders.

use rmpv::Value;
use switchyard_core::{ErrorKind, Result};

use super::*;
use crate::configs::{bytes, list, map};
use crate::plugin_config::PluginConfig;
use crate::task_config::TaskOptions;

/// Calls `look` with every attribute and block of a schema, and its path.
fn walk(at: &str, spec: &hclspec::Spec, look: &mut dyn FnMut(&str, &Block)) {
    let block = spec
        .block
        .as_ref()
        .expect("an agent refuses a specification of nothing");
    let (name, nested) = match block {
        Block::Object(object) => {
            for (key, spec) in &object.attributes {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                walk(&path, spec, look);
            }
            return;
        }
        Block::Attr(attr) => (&attr.name, None),
        Block::BlockValue(block) => (&block.name, block.nested.as_ref()),
        Block::BlockList(list) => (&list.name, list.nested.as_ref()),
        Block::BlockAttrs(attrs) => (&attrs.name, None),
        Block::Array(_)
        | Block::BlockSet(_)
        | Block::BlockMap(_)
        | Block::Default(_)
        | Block::Literal(_) => panic!("{at}: {block:?} is not made here"),
    };
    assert_eq!(
        at.rsplit('.').next(),
        Some(name.as_str()),
        "{at}: the key of an object is its name"
    );
    look(at, block);
    if let Some(nested) = nested {
        assert!(
            matches!(nested.block, Some(Block::Object(_))),
            "{at}: what is in a block is an object"
        );
        walk(at, nested, look);
    }
}

/// A value of a type that does not fit the schema.
fn wrong(block: &Block) -> Value {
    let type_ = if let Block::Attr(attr) = block {
        attr.r#type.as_str()
    } else {
        ""
    };
    if matches!(type_, TEXT | NUMBER) {
        true.into()
    } else {
        1.5.into()
    }
}

/// A configuration with this value at a path; each block on the path occurs once.
fn config(path: &str, lists: &[String], value: Value) -> Value {
    let mut value = value;
    let mut at = path;
    loop {
        let (parent, key) = at.rsplit_once('.').unwrap_or(("", at));
        value = map([(key, value)]);
        if parent.is_empty() {
            return value;
        }
        if lists.iter().any(|list| list == parent) {
            value = list([value]);
        }
        at = parent;
    }
}

/// Checks that each key of a schema is decoded: a value of a wrong type is refused with the path of the key.
fn check(
    schema: &hclspec::Spec,
    base: &[(&str, Value)],
    decode: &dyn Fn(&[u8]) -> Result<()>,
) -> usize {
    let mut keys = Vec::new();
    let mut lists = Vec::new();
    walk("", schema, &mut |path, block| {
        keys.push((path.to_owned(), wrong(block)));
        if matches!(block, Block::BlockList(_)) {
            lists.push(path.to_owned());
        }
    });
    for (path, value) in &keys {
        let Value::Map(mut entries) = config(path, &lists, value.clone()) else {
            unreachable!("it is made as one")
        };
        let root = path.split('.').next();
        entries.extend(
            base.iter()
                .filter(|(key, _)| root != Some(*key))
                .map(|(key, value)| ((*key).into(), value.clone())),
        );
        // The keys of a list of blocks are those of its first block.
        let lists = lists
            .iter()
            .filter(|list| path.starts_with(&format!("{list}.")));
        let named = lists.fold(path.clone(), |named, list| {
            named.replacen(list.as_str(), &format!("{list}[0]"), 1)
        });
        let error = decode(&bytes(&Value::Map(entries))).expect_err(path);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{path}");
        assert!(
            error.to_string().starts_with(&format!("{named}: ")),
            "{path}: {error}"
        );
    }
    keys.len()
}

#[test]
fn every_task_schema_key_is_decoded() {
    let base = [("image", "busybox".into())];
    let keys = check(&task_schema(), &base, &|bytes| {
        TaskOptions::decode(bytes).map(drop)
    });
    assert!(keys > 90, "{keys}");
}

#[test]
fn every_meaningful_plugin_schema_key_is_decoded() {
    let mut schema = plugin_schema();
    let Some(Block::Object(object)) = &mut schema.block else {
        panic!("the root is an object")
    };
    for without_meaning in [
        "endpoint",
        "tls",
        "logging",
        "infra_image",
        "infra_image_pull_timeout",
        "container_exists_attempts",
        "windows_allow_insecure_container_admin",
    ] {
        object
            .attributes
            .remove(without_meaning)
            .expect(without_meaning);
    }
    check(&schema, &[], &|bytes| PluginConfig::decode(bytes).map(drop));
}

#[test]
fn options_of_texts_are_written_as_with_docker() {
    // As Nomad's docker driver has it: a block that can be an object, or a list of maps, which cannot.
    let mut found = Vec::new();
    walk("", &task_schema(), &mut |path, block| {
        if let Block::BlockAttrs(attrs) = block {
            assert_eq!((attrs.r#type.as_str(), attrs.required), (TEXT, false));
            found.push((path.to_owned(), "object"));
        } else if let Block::Attr(attr) = block
            && attr.r#type == PAIRS
        {
            found.push((path.to_owned(), "maps"));
        }
    });
    found.sort();
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(path, how)| (path.as_str(), *how))
        .collect();
    let expected = [
        ("labels", "maps"),
        ("logging.config", "maps"),
        ("mount.volume_options.driver_config.options", "maps"),
        ("mount.volume_options.labels", "maps"),
        ("mounts.volume_options.driver_config.options", "maps"),
        ("mounts.volume_options.labels", "maps"),
        ("port_map", "maps"),
        ("storage_opt", "object"),
        ("sysctl", "maps"),
        ("ulimit", "maps"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn schema_types_are_hcl_types() {
    for schema in [task_schema(), plugin_schema()] {
        walk("", &schema, &mut |path, block| {
            if let Block::Attr(attr) = block {
                assert!(
                    [TEXT, TEXTS, NUMBER, FLAG, PAIRS].contains(&attr.r#type.as_str()),
                    "{path}: {attr:?}"
                );
                assert_eq!(attr.required, path == "image", "{path}");
            }
        });
    }
}

#[test]
fn every_schema_key_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nomad-options.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut words: Vec<&str> = page
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    words.sort_unstable();
    for schema in [task_schema(), plugin_schema()] {
        walk("", &schema, &mut |path, _| {
            let name = path.rsplit('.').next().unwrap_or(path);
            assert!(words.binary_search(&name).is_ok(), "{path}");
        });
    }
}
