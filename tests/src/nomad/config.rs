//! Configurations as an agent encodes them: every key of the schema is present, in order, and a key that was
//! not set is nil.

use rmpv::Value as Packed;
use serde_json::Value;
use switchyard_proto::nomad::shared::hclspec::{self, spec::Block};

/// Encodes `given` after a schema.
///
/// # Panics
/// When `given` does not fit the schema: an agent would refuse the job, and no plugin would see it.
#[track_caller]
#[must_use]
pub fn encode(spec: &hclspec::Spec, given: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &pack(spec, given)).expect("a vector takes all");
    bytes
}

fn pack(spec: &hclspec::Spec, given: &Value) -> Packed {
    let nested = |spec: &Option<Box<hclspec::Spec>>, given: &Value| {
        pack(
            spec.as_deref().expect("a block has a schema of its own"),
            given,
        )
    };
    match spec.block.as_ref().expect("a schema says what it is") {
        Block::Object(object) => pack_object(object, given),
        Block::Attr(attr) => {
            assert!(
                !(attr.required && given.is_null()),
                "{} is required",
                attr.name
            );
            pack_value(&attr.r#type, given)
        }
        Block::BlockValue(_) if given.is_null() => Packed::Nil,
        Block::BlockValue(block) => nested(&block.nested, given),
        Block::BlockList(block) => Packed::Array(
            listed(given)
                .iter()
                .map(|item| nested(&block.nested, item))
                .collect(),
        ),
        Block::Default(default) => {
            let spec = |spec: &Option<Box<hclspec::Spec>>, given: &Value| nested(spec, given);
            let primary = spec(&default.primary, given);
            if primary.is_nil() {
                spec(&default.default, &Value::Null)
            } else {
                primary
            }
        }
        Block::Literal(literal) => {
            let value: Value =
                serde_json::from_str(&literal.value).expect("our literals are also JSON");
            pack_value("any", &value)
        }
        Block::BlockAttrs(_) if given.is_null() => Packed::Nil,
        Block::BlockAttrs(attrs) => {
            let blocks = listed(given);
            let [block] = blocks.as_slice() else {
                panic!("{} occurs more than once", attrs.name)
            };
            pack_value(&format!("map({})", attrs.r#type), block)
        }
        Block::Array(_) | Block::BlockSet(_) | Block::BlockMap(_) => {
            panic!("our schemas have no such block: {spec:?}")
        }
    }
}

fn pack_object(object: &hclspec::Object, given: &Value) -> Packed {
    let empty = serde_json::Map::new();
    let given = if given.is_null() {
        &empty
    } else {
        given.as_object().expect("a block is an object")
    };
    if let Some(unknown) = given
        .keys()
        .find(|key| !object.attributes.contains_key(*key))
    {
        panic!("the schema has no {unknown:?}");
    }
    let pairs = object.attributes.iter().map(|(name, spec)| {
        let value = given.get(name).unwrap_or(&Value::Null);
        (Packed::from(name.as_str()), pack(spec, value))
    });
    Packed::Map(pairs.collect())
}

/// Values as HCL converts them: a number where text is wanted becomes text, and a block where a list of maps
/// is becomes one of one.
fn pack_value(kind: &str, given: &Value) -> Packed {
    let inner = |prefix: &str| {
        kind.strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix(')'))
    };
    match given {
        Value::Null => Packed::Nil,
        Value::String(text) if kind == "number" => {
            pack_number(&serde_json::from_str(text).expect("it is a number"))
        }
        Value::String(text) if kind == "bool" => Packed::Boolean(text == "true"),
        Value::String(text) => Packed::from(text.as_str()),
        Value::Bool(flag) if kind == "string" => Packed::from(flag.to_string()),
        Value::Bool(flag) => Packed::Boolean(*flag),
        Value::Number(number) if kind == "string" => Packed::from(number.to_string()),
        Value::Number(number) => pack_number(number),
        Value::Array(_) | Value::Object(_) if inner("list(").is_some() => {
            let kind = inner("list(").expect("it has just been seen");
            Packed::Array(
                listed(given)
                    .iter()
                    .map(|item| pack_value(kind, item))
                    .collect(),
            )
        }
        Value::Array(items) => {
            Packed::Array(items.iter().map(|item| pack_value("any", item)).collect())
        }
        Value::Object(map) => {
            let kind = inner("map(").unwrap_or("any");
            Packed::Map(
                map.iter()
                    .map(|(name, item)| (Packed::from(name.as_str()), pack_value(kind, item)))
                    .collect(),
            )
        }
    }
}

/// Whole numbers as short as they can be; others as floating point where that is exact, and else as text.
fn pack_number(number: &serde_json::Number) -> Packed {
    if let Some(whole) = number.as_i64() {
        return Packed::from(whole);
    }
    let float = number.as_f64().expect("JSON has no other numbers here");
    if (float * 1024.0).fract() == 0.0 {
        Packed::F64(float)
    } else {
        Packed::from(number.to_string())
    }
}

fn listed(given: &Value) -> Vec<Value> {
    match given {
        Value::Null => Vec::new(),
        Value::Array(items) => items.clone(),
        Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            vec![given.clone()]
        }
    }
}
