//! The schemas with which agents read configurations. No key has a default there: what is not given comes as nil, and what that means
//! is said in one place, where it is read.

use switchyard_proto::nomad::shared::hclspec::{self, spec::Block};

mod plugin;
mod task;

pub(crate) use plugin::plugin_schema;
pub(crate) use task::task_schema;

/// A key and what may be said under it.
type SchemaEntry = (&'static str, hclspec::Spec);

/// Texts by name, several times over: what people write as a block, or as a list of maps.
const PAIRS: &str = "list(map(string))";
const TEXT: &str = "string";
const TEXTS: &str = "list(string)";
const NUMBER: &str = "number";
const FLAG: &str = "bool";

fn spec(block: Block) -> hclspec::Spec {
    hclspec::Spec { block: Some(block) }
}

fn object(entries: impl IntoIterator<Item = SchemaEntry>) -> hclspec::Spec {
    let attributes = entries.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect();
    spec(Block::Object(hclspec::Object { attributes }))
}

/// A value of a type of HCL.
fn attr(name: &'static str, type_: &str) -> SchemaEntry {
    let attr = hclspec::Attr { name: name.to_owned(), r#type: type_.to_owned(), required: false };
    (name, spec(Block::Attr(attr)))
}

/// The same, which must be given.
fn required(name: &'static str, type_: &str) -> SchemaEntry {
    let attr = hclspec::Attr { name: name.to_owned(), r#type: type_.to_owned(), required: true };
    (name, spec(Block::Attr(attr)))
}

/// A block that may be given once.
fn block(name: &'static str, entries: impl IntoIterator<Item = SchemaEntry>) -> SchemaEntry {
    let nested = Some(Box::new(object(entries)));
    (
        name,
        spec(Block::BlockValue(Box::new(hclspec::Block { name: name.to_owned(), required: false, nested }))),
    )
}

/// A block that may be given any number of times.
fn blocks(name: &'static str, entries: impl IntoIterator<Item = SchemaEntry>) -> SchemaEntry {
    let nested = Some(Box::new(object(entries)));
    let list = hclspec::BlockList { name: name.to_owned(), min_items: 0, max_items: 0, nested };
    (name, spec(Block::BlockList(Box::new(list))))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
