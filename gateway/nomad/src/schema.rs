//! The schemas by which agents decode configurations. No key has a default in them: a missing key arrives as
//! nil, and its default is defined only where it is decoded.

use switchyard_proto::nomad::shared::hclspec::{self, spec::Block};

mod plugin;
mod task;

pub(crate) use plugin::plugin_schema;
pub(crate) use task::task_schema;

/// A key and its specification.
type SchemaEntry = (&'static str, hclspec::Spec);

/// Pairs of texts, in any number: written as a block, or as a list of maps.
const PAIRS: &str = "list(map(string))";
const TEXT: &str = "string";
const TEXTS: &str = "list(string)";
const NUMBER: &str = "number";
const FLAG: &str = "bool";

fn spec(block: Block) -> hclspec::Spec {
    hclspec::Spec { block: Some(block) }
}

fn object(entries: impl IntoIterator<Item = SchemaEntry>) -> hclspec::Spec {
    let attributes = entries
        .into_iter()
        .map(|(name, spec)| (name.to_owned(), spec))
        .collect();
    spec(Block::Object(hclspec::Object { attributes }))
}

/// An attribute of an HCL type.
fn attr(name: &'static str, type_: &str) -> SchemaEntry {
    let attr = hclspec::Attr {
        name: name.to_owned(),
        r#type: type_.to_owned(),
        required: false,
    };
    (name, spec(Block::Attr(attr)))
}

/// A required attribute.
fn required(name: &'static str, type_: &str) -> SchemaEntry {
    let attr = hclspec::Attr {
        name: name.to_owned(),
        r#type: type_.to_owned(),
        required: true,
    };
    (name, spec(Block::Attr(attr)))
}

/// A block of texts with any names, which may also be written as an object. It may occur once.
fn block_attrs(name: &'static str) -> SchemaEntry {
    let attrs = hclspec::BlockAttrs {
        name: name.to_owned(),
        r#type: TEXT.to_owned(),
        required: false,
    };
    (name, spec(Block::BlockAttrs(attrs)))
}

/// A block that may occur once.
fn block(name: &'static str, entries: impl IntoIterator<Item = SchemaEntry>) -> SchemaEntry {
    let nested = Some(Box::new(object(entries)));
    (
        name,
        spec(Block::BlockValue(Box::new(hclspec::Block {
            name: name.to_owned(),
            required: false,
            nested,
        }))),
    )
}

/// A block that may occur any number of times.
fn blocks(name: &'static str, entries: impl IntoIterator<Item = SchemaEntry>) -> SchemaEntry {
    let nested = Some(Box::new(object(entries)));
    let list = hclspec::BlockList {
        name: name.to_owned(),
        min_items: 0,
        max_items: 0,
        nested,
    };
    (name, spec(Block::BlockList(Box::new(list))))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
