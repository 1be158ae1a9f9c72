//! Evaluates a template. Values borrow from the facts and files; the bytes that are made and the output are
//! bounded, so that time and memory are too.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::TemplateError;
use super::facts::{Facts, Field, Files, Structure};
use super::parser::{Command, Function, Operand, Part, Pipeline, Template};

/// The result of a template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// The text.
    pub(crate) bytes: Vec<u8>,
    /// True if it used a secret, and so is one.
    pub(crate) is_secret: bool,
}

/// Multiple of the output limit that may be copied and compared in intermediate values.
const WORK: usize = 4;

#[derive(Debug, Clone)]
enum Value<'a> {
    Text(Cow<'a, [u8]>),
    Bool(bool),
    Labels(&'a BTreeMap<String, String>),
    Structure(Structure),
}

struct Evaluation<'a> {
    facts: &'a Facts,
    files: &'a dyn Files,
    limit: usize,
    /// Bytes that may still be copied and compared.
    work: usize,
    output: Expansion,
}

/// Evaluates a template; the result has at most `limit` bytes.
pub(super) fn evaluate(
    template: &Template<'_>,
    facts: &Facts,
    files: &dyn Files,
    limit: usize,
) -> Result<Expansion, TemplateError> {
    let output = Expansion {
        bytes: Vec::new(),
        is_secret: false,
    };
    let mut evaluation = Evaluation {
        facts,
        files,
        limit,
        work: limit.saturating_mul(WORK),
        output,
    };
    evaluation.parts(&template.parts)?;
    Ok(evaluation.output)
}

impl<'a> Evaluation<'a> {
    fn parts(&mut self, parts: &'a [Part<'_>]) -> Result<(), TemplateError> {
        for part in parts {
            match part {
                Part::Text(text) => self.write(0, text)?,
                Part::Output(pipeline) => {
                    let value = self.pipeline(pipeline)?;
                    self.print(pipeline.at, &value)?;
                }
                Part::If {
                    branches,
                    otherwise,
                } => {
                    let mut chosen = otherwise;
                    for (condition, parts) in branches {
                        if self.pipeline(condition)?.is_true() {
                            chosen = parts;
                            break;
                        }
                    }
                    self.parts(chosen)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), TemplateError> {
        if self.output.bytes.len() + bytes.len() > self.limit {
            return Err(TemplateError::new(at, "the result is too long"));
        }
        self.output.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn print(&mut self, at: usize, value: &Value<'a>) -> Result<(), TemplateError> {
        match value {
            Value::Text(text) => self.write(at, text),
            Value::Bool(value) => self.write(at, if *value { b"true" } else { b"false" }),
            // As Go prints maps.
            Value::Labels(labels) => {
                self.write(at, b"map[")?;
                for (number, (key, value)) in labels.iter().enumerate() {
                    let space: &[u8] = if number == 0 { b"" } else { b" " };
                    for bytes in [space, key.as_bytes(), b":", value.as_bytes()] {
                        self.write(at, bytes)?;
                    }
                }
                self.write(at, b"]")
            }
            Value::Structure(_) => Err(TemplateError::new(
                at,
                "only texts can be printed: name a field",
            )),
        }
    }

    fn pipeline(&mut self, pipeline: &'a Pipeline<'_>) -> Result<Value<'a>, TemplateError> {
        let mut last: Option<Value<'a>> = None;
        for command in &pipeline.commands {
            last = Some(match command {
                Command::Value(operand) => self.operand(operand)?,
                Command::Call {
                    at,
                    function,
                    arguments,
                } => self.call(*at, *function, arguments, last)?,
            });
        }
        last.ok_or_else(|| TemplateError::new(pipeline.at, "a value is missing"))
    }

    fn operand(&mut self, operand: &'a Operand<'_>) -> Result<Value<'a>, TemplateError> {
        match operand {
            Operand::Text(text) => Ok(Value::Text(Cow::Borrowed(text))),
            Operand::Bool(value) => Ok(Value::Bool(*value)),
            Operand::Path { at, names } => {
                self.fields(*at, Value::Structure(Structure::Root), names)
            }
            Operand::Group { pipeline, names } => {
                let value = self.pipeline(pipeline)?;
                self.fields(pipeline.at, value, names)
            }
        }
    }

    fn fields(
        &self,
        at: usize,
        value: Value<'a>,
        names: &[&[u8]],
    ) -> Result<Value<'a>, TemplateError> {
        let facts = self.facts;
        names.iter().try_fold(value, |value, name| match value {
            Value::Structure(structure) => match structure.field(name, facts) {
                Some(Field::Structure(structure)) => Ok(Value::Structure(structure)),
                Some(Field::Text(text)) => Ok(Value::Text(Cow::Borrowed(text.as_bytes()))),
                Some(Field::Labels(labels)) => Ok(Value::Labels(labels)),
                None => Err(TemplateError::about(at, "there is no such field", name)),
            },
            Value::Labels(labels) => match lookup(labels, name) {
                Some(value) => Ok(Value::Text(Cow::Borrowed(value.as_bytes()))),
                None => Err(TemplateError::about(at, "map has no entry for key", name)),
            },
            Value::Text(_) | Value::Bool(_) => {
                Err(TemplateError::about(at, "a text has no field", name))
            }
        })
    }

    /// Calls a function; `last` is the value of the command before, its last argument.
    fn call(
        &mut self,
        at: usize,
        function: Function,
        arguments: &'a [Operand<'_>],
        last: Option<Value<'a>>,
    ) -> Result<Value<'a>, TemplateError> {
        if let Function::And | Function::Or = function {
            return self.choose(at, function == Function::And, arguments, last);
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            values.push(self.operand(argument)?);
        }
        values.extend(last);
        match (function, values.as_slice()) {
            (Function::Not, [value]) => Ok(Value::Bool(!value.is_true())),
            (Function::Eq, [first, others @ ..]) if !others.is_empty() => {
                let mut equal = false;
                for other in others {
                    equal |= self.are_equal(at, first, other)?;
                }
                Ok(Value::Bool(equal))
            }
            (Function::Ne, [first, other]) => Ok(Value::Bool(!self.are_equal(at, first, other)?)),
            (Function::Join, [separator, rest @ ..]) => self.join(at, separator, rest),
            (Function::Index, [Value::Labels(labels), Value::Text(key)]) => {
                // As in Go: the zero value for a missing key.
                let value = lookup(labels, key).unwrap_or_default();
                Ok(Value::Text(Cow::Borrowed(value.as_bytes())))
            }
            (Function::Secret, [Value::Text(target)]) if self.files.are_available() => {
                self.output.is_secret = true;
                let found = self.files.secret(target);
                found
                    .map(Value::Text)
                    .ok_or_else(|| TemplateError::about(at, "secret target not found", target))
            }
            (Function::Config, [Value::Text(target)]) if self.files.are_available() => {
                let found = self.files.config(target);
                found
                    .map(Value::Text)
                    .ok_or_else(|| TemplateError::about(at, "config target not found", target))
            }
            (Function::Env, [Value::Text(name)]) if self.files.are_available() => {
                Ok(Value::Text(self.files.env(name)))
            }
            (Function::Secret | Function::Config | Function::Env, _)
                if !self.files.are_available() =>
            {
                Err(TemplateError::new(
                    at,
                    "secret, config and env are functions of secrets and configs alone",
                ))
            }
            _ => Err(TemplateError::new(at, "a function has wrong arguments")),
        }
    }

    /// The first argument that decides, or else the last. Later ones are not evaluated.
    fn choose(
        &mut self,
        at: usize,
        continues_on: bool,
        arguments: &'a [Operand<'_>],
        last: Option<Value<'a>>,
    ) -> Result<Value<'a>, TemplateError> {
        let mut value = None;
        for argument in arguments {
            let one = self.operand(argument)?;
            if one.is_true() != continues_on {
                return Ok(one);
            }
            value = Some(one);
        }
        last.or(value)
            .ok_or_else(|| TemplateError::new(at, "a function has wrong arguments"))
    }

    fn join(
        &mut self,
        at: usize,
        separator: &Value<'a>,
        rest: &[Value<'a>],
    ) -> Result<Value<'a>, TemplateError> {
        let text = |value: &Value<'a>| match value {
            Value::Text(text) => Ok(text.clone()),
            Value::Bool(_) | Value::Labels(_) | Value::Structure(_) => {
                Err(TemplateError::new(at, "join takes texts alone"))
            }
        };
        let separator = text(separator)?;
        let mut joined = Vec::new();
        for (number, value) in rest.iter().enumerate() {
            let value = text(value)?;
            let separator: &[u8] = if number == 0 { b"" } else { &separator };
            let length = separator.len() + value.len();
            self.spend(at, length)?;
            if joined.len() + length > self.limit {
                return Err(TemplateError::new(at, "the result is too long"));
            }
            joined.extend_from_slice(separator);
            joined.extend_from_slice(&value);
        }
        Ok(Value::Text(Cow::Owned(joined)))
    }

    fn are_equal(
        &mut self,
        at: usize,
        one: &Value<'a>,
        other: &Value<'a>,
    ) -> Result<bool, TemplateError> {
        match (one, other) {
            (Value::Text(one), Value::Text(other)) => {
                self.spend(at, one.len().min(other.len()))?;
                Ok(one == other)
            }
            (Value::Bool(one), Value::Bool(other)) => Ok(one == other),
            _ => Err(TemplateError::new(at, "incompatible types for comparison")),
        }
    }

    /// Counts bytes that are copied or compared.
    fn spend(&mut self, at: usize, bytes: usize) -> Result<(), TemplateError> {
        let left = self.work.checked_sub(bytes);
        self.work = left.ok_or_else(|| TemplateError::new(at, "it takes too much work"))?;
        Ok(())
    }
}

fn lookup<'a>(labels: &'a BTreeMap<String, String>, key: &[u8]) -> Option<&'a str> {
    std::str::from_utf8(key)
        .ok()
        .and_then(|key| labels.get(key))
        .map(String::as_str)
}

// === impl Value ===

impl Value<'_> {
    /// Returns whether it counts as true in a condition: as in Go, an empty value does not.
    fn is_true(&self) -> bool {
        match self {
            Value::Text(text) => !text.is_empty(),
            Value::Bool(value) => *value,
            Value::Labels(labels) => !labels.is_empty(),
            Value::Structure(_) => true,
        }
    }
}
