//! Makes the shapes of messages of their descriptors: which of their fields take memory of their own once they are decoded,
//! and how much. See `proto/src/shape.rs`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// The size of a pointer with what it points to beside its content: `String`, `Vec` and `BTreeMap` have three words.
const LIST: usize = 24;
/// Size of a number, and of the discriminant of an optional one.
const WORD: usize = 8;
/// Overhead of a map for each entry: its nodes are half empty.
const NODE: usize = 48;

/// The generated code.
pub(crate) struct Code {
    /// The file with all shapes.
    pub(crate) table: String,
    /// By package, what is added to its file.
    pub(crate) packages: BTreeMap<String, String>,
}

/// All messages, by their full name, which begins with a dot.
struct Messages<'a> {
    by_name: BTreeMap<String, &'a DescriptorProto>,
    boxed: &'a [&'a str],
}

/// The shapes of what the calls of all services take and return.
pub(crate) fn code(
    descriptors: &FileDescriptorSet,
    boxed: &[&str],
) -> Result<Code, Box<dyn Error>> {
    let mut messages = Messages {
        by_name: BTreeMap::new(),
        boxed,
    };
    for file in &descriptors.file {
        for message in &file.message_type {
            messages.add(&format!(".{}", file.package()), message);
        }
    }
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let mut calls: Vec<String> = services
        .flat_map(|service| &service.method)
        .flat_map(|method| {
            [
                method.input_type().to_owned(),
                method.output_type().to_owned(),
            ]
        })
        .filter(|name| name != ".google.protobuf.Empty")
        .collect();
    calls.sort();
    calls.dedup();
    // The first is that of the empty message.
    let mut places = BTreeMap::new();
    let mut order = vec![".google.protobuf.Empty".to_owned()];
    for name in &calls {
        messages.place(name, &mut places, &mut order)?;
    }
    let mut table =
        "/// The shapes of all messages that are in what calls take and return: see [`shape`].\n\
                     pub static SHAPES: &[shape::Shape] = &[\n"
            .to_owned();
    for name in &order {
        messages.write(name, &places, &mut table)?;
    }
    table.push_str("];\n");
    let mut packages = BTreeMap::<String, String>::new();
    for name in &calls {
        let (package, own) = name[1..]
            .rsplit_once('.')
            .ok_or("a message without a package")?;
        let place = places[name];
        let own = rust_name(own);
        let impls = packages.entry(package.to_owned()).or_default();
        writeln!(
            impls,
            "impl crate::shape::Shaped for {own} {{\n    const SHAPE: usize = {place};\n}}"
        )?;
    }
    Ok(Code { table, packages })
}

impl<'a> Messages<'a> {
    fn add(&mut self, scope: &str, message: &'a DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested);
        }
        self.by_name.insert(name, message);
    }

    fn get(&self, name: &str) -> Result<&'a DescriptorProto, String> {
        self.by_name
            .get(name)
            .copied()
            .ok_or_else(|| format!("there is no message {name}"))
    }

    /// Gives a message and those in it their places.
    fn place(
        &self,
        name: &str,
        places: &mut BTreeMap<String, usize>,
        order: &mut Vec<String>,
    ) -> Result<(), String> {
        if places.contains_key(name) {
            return Ok(());
        }
        places.insert(name.to_owned(), order.len());
        order.push(name.to_owned());
        for field in self
            .get(name)?
            .field
            .iter()
            .filter(|field| field.r#type() == Type::Message)
        {
            self.place(field.type_name(), places, order)?;
        }
        Ok(())
    }

    fn write(
        &self,
        name: &str,
        places: &BTreeMap<String, usize>,
        table: &mut String,
    ) -> Result<(), Box<dyn Error>> {
        let message = self.get(name)?;
        writeln!(
            table,
            "    // {}\n    shape::Shape {{\n        fields: &[",
            &name[1..]
        )?;
        let mut fields: Vec<&FieldDescriptorProto> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            if let Some(kind) = self.kind(name, message, field, places)? {
                let number = field.number();
                writeln!(
                    table,
                    "            shape::Field {{ number: {number}, kind: shape::Kind::{kind} }},"
                )?;
            }
        }
        table.push_str("        ],\n    },\n");
        Ok(())
    }

    /// Returns the kind of a field's content; `None` for a number, which is in the struct.
    fn kind(
        &self,
        name: &str,
        message: &DescriptorProto,
        field: &FieldDescriptorProto,
        places: &BTreeMap<String, usize>,
    ) -> Result<Option<String>, Box<dyn Error>> {
        let is_list = field.label() == Label::Repeated;
        if let Some(each) = size_of_number(field.r#type()) {
            return Ok(is_list.then(|| format!("Numbers {{ each: {each} }}")));
        }
        Ok(match field.type_name.as_deref() {
            Some(of) => {
                let entry = self
                    .get(of)?
                    .options
                    .as_ref()
                    .is_some_and(|options| options.map_entry());
                let each = match (entry, is_list, self.is_boxed(name, message, field)?) {
                    (true, _, _) => NODE + self.size(of)?,
                    (false, true, _) | (false, false, true) => self.size(of)?,
                    (false, false, false) => 0,
                };
                let place = places[of];
                Some(format!("Message {{ shape: {place}, each: {each} }}"))
            }
            None => Some(format!(
                "Text {{ each: {} }}",
                if is_list { LIST } else { 0 }
            )),
        })
    }

    /// The size of a struct, from above.
    fn size(&self, name: &str) -> Result<usize, String> {
        let message = self.get(name)?;
        let mut size = 0;
        let mut oneofs = BTreeMap::<i32, usize>::new();
        for field in &message.field {
            let own = if field.label() == Label::Repeated {
                LIST
            } else if size_of_number(field.r#type()).is_some() {
                WORD
            } else if field.r#type() != Type::Message {
                LIST
            } else if self.is_boxed(name, message, field)? {
                WORD
            } else {
                WORD + self.size(field.type_name())?
            };
            match field.oneof_index {
                Some(oneof) if !field.proto3_optional() => {
                    let largest = oneofs.entry(oneof).or_default();
                    *largest = own.max(*largest);
                }
                Some(_) | None => size += own,
            }
        }
        Ok(size + oneofs.values().map(|largest| WORD + largest).sum::<usize>())
    }

    /// Returns whether a message is behind a pointer: by request, or because the message would contain
    /// itself.
    fn is_boxed(
        &self,
        name: &str,
        message: &DescriptorProto,
        field: &FieldDescriptorProto,
    ) -> Result<bool, String> {
        let oneof = field.oneof_index.filter(|_| !field.proto3_optional());
        let oneof = oneof.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
        let path = match oneof {
            Some(oneof) => format!("{name}.{}.{}", oneof.name(), field.name()),
            None => format!("{name}.{}", field.name()),
        };
        Ok(self.boxed.contains(&path.as_str())
            || self.contains(field.type_name(), name, &mut Vec::new())?)
    }

    /// Returns whether a message is another one, or contains it without a list between.
    fn contains(&self, outer: &str, inner: &str, seen: &mut Vec<String>) -> Result<bool, String> {
        if outer == inner {
            return Ok(true);
        }
        if seen.iter().any(|name| name == outer) {
            return Ok(false);
        }
        seen.push(outer.to_owned());
        for field in &self.get(outer)?.field {
            if field.r#type() == Type::Message
                && field.label() != Label::Repeated
                && self.contains(field.type_name(), inner, seen)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The name of a message in Rust: a word of capitals has only the first one.
fn rust_name(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let is_upper = |at: usize| letters.get(at).is_some_and(char::is_ascii_uppercase);
    let is_lower = |at: usize| letters.get(at).is_some_and(char::is_ascii_lowercase);
    let within = |at: usize| at > 0 && is_upper(at - 1) && !is_lower(at + 1);
    let letter = |(at, letter): (usize, &char)| {
        if within(at) {
            letter.to_ascii_lowercase()
        } else {
            *letter
        }
    };
    letters.iter().enumerate().map(letter).collect()
}

/// The size of a number in a list; `None` for what is no number. No message of ours has a group.
fn size_of_number(kind: Type) -> Option<usize> {
    match kind {
        Type::Bool => Some(1),
        Type::Int32
        | Type::Uint32
        | Type::Sint32
        | Type::Fixed32
        | Type::Sfixed32
        | Type::Float
        | Type::Enum => Some(4),
        Type::Int64
        | Type::Uint64
        | Type::Sint64
        | Type::Fixed64
        | Type::Sfixed64
        | Type::Double => Some(8),
        Type::String | Type::Bytes | Type::Message | Type::Group => None,
    }
}
