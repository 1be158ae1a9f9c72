//! Fields of a CDI spec file as the reference implementation of CDI takes them: null is a field that is left out, a
//! number or a truth value is a text where one is wanted, and an empty text or a zero is none where that means so.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A text, which may be written as a number, as a truth value, or as null for an empty one.
#[derive(Debug)]
pub(super) struct Text(String);

/// Takes any scalar for a text.
struct Scalar;

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Scalar).map(Self)
    }
}

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

/// A text.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Text::deserialize(from).map(|Text(text)| text)
}

/// A text, of which an empty one is none.
pub(super) fn text_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Some(text(from)?).filter(|text| !text.is_empty()))
}

/// A list of texts.
pub(super) fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let texts: Vec<Text> = or_default(from)?;
    Ok(texts.into_iter().map(|Text(text)| text).collect())
}

/// A number, of which zero is none.
pub(super) fn number_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::<i64>::deserialize(from)?.filter(|number| *number != 0))
}

/// A value, of which null is the default.
pub(super) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}
