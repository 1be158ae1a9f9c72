//! The contrast of texts, by the definition of WCAG 2.2: (L1 + 0.05) / (L2 + 0.05), of relative luminances.

use std::collections::BTreeMap;

use serde_json::Value;

/// Red, green, blue and opacity, from 0 to 1.
type Colour = [f64; 4];

/// The styles that a snapshot must have, in this order.
pub(super) const STYLES: [&str; 3] = ["color", "background-color", "visibility"];

/// A text and its contrast to its background.
#[derive(Debug, Clone, PartialEq)]
pub struct TextContrast {
    /// The text.
    pub text: String,
    /// From 1 to 21.
    pub ratio: f64,
}

/// The texts that are laid out, in the order of the document.
pub(super) fn texts(snapshot: &Value) -> Vec<String> {
    laid_out(snapshot)
        .into_iter()
        .map(|(_, text)| text)
        .collect()
}

/// The contrast of each text.
pub(super) fn of_snapshot(snapshot: &Value) -> Vec<TextContrast> {
    let places = places(snapshot);
    let contrast = |(place, text): (usize, String)| {
        let behind = behind(snapshot, &places, place);
        let colour = blend(style(snapshot, place, 0), behind);
        TextContrast {
            text,
            ratio: ratio(colour, behind),
        }
    };
    laid_out(snapshot).into_iter().map(contrast).collect()
}

/// Returns the colour behind the text at a place: the backgrounds of the elements that it is in, over white.
fn behind(snapshot: &Value, places: &BTreeMap<u64, usize>, place: usize) -> Colour {
    let document = &snapshot["documents"][0];
    let mut node = document["layout"]["nodeIndex"][place].as_u64();
    let mut backgrounds = Vec::new();
    while let Some(index) = node {
        backgrounds.extend(places.get(&index).map(|place| style(snapshot, *place, 1)));
        let index = usize::try_from(index).expect("an index fits");
        // The root has -1.
        node = document["nodes"]["parentIndex"][index].as_u64();
    }
    backgrounds
        .into_iter()
        .rev()
        .fold([1.0; 4], |under, over| blend(over, under))
}

/// The place in the layout of each node that has one.
fn places(snapshot: &Value) -> BTreeMap<u64, usize> {
    let nodes = snapshot["documents"][0]["layout"]["nodeIndex"]
        .as_array()
        .expect("a layout has nodes");
    let mut places = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        // A text that is broken into lines has several places; they have the same styles.
        places
            .entry(node.as_u64().expect("a node has an index"))
            .or_insert(place);
    }
    places
}

/// The colour that a style of a place is.
fn style(snapshot: &Value, place: usize, number: usize) -> Colour {
    let text = string(
        snapshot,
        &snapshot["documents"][0]["layout"]["styles"][place][number],
    );
    // What has no box of its own, as a text, paints no background.
    if text.is_empty() {
        return [0.0; 4];
    }
    parse(text).unwrap_or_else(|| panic!("{text:?} is no colour that is known here"))
}

/// The places in the layout that have text, with the text.
fn laid_out(snapshot: &Value) -> Vec<(usize, String)> {
    let layout = &snapshot["documents"][0]["layout"];
    let texts = layout["text"]
        .as_array()
        .expect("a layout has texts")
        .iter()
        .enumerate();
    let is_visible = |place: &usize| string(snapshot, &layout["styles"][*place][2]) != "hidden";
    texts
        .map(|(place, index)| (place, string(snapshot, index).trim().to_owned()))
        .filter(|(place, text)| !text.is_empty() && is_visible(place))
        .collect()
}

/// A string of a snapshot, by its index; empty if it has none.
fn string<'a>(snapshot: &'a Value, index: &Value) -> &'a str {
    let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
    index
        .and_then(|index| snapshot["strings"][index].as_str())
        .unwrap_or_default()
}

/// `rgb(1, 2, 3)` or `rgba(1, 2, 3, 0.5)`.
fn parse(colour: &str) -> Option<Colour> {
    let inner = colour
        .strip_prefix("rgba(")
        .or_else(|| colour.strip_prefix("rgb("))?
        .strip_suffix(')')?;
    let parts: Vec<f64> = inner
        .split(',')
        .map(|part| part.trim().parse().ok())
        .collect::<Option<_>>()?;
    match parts[..] {
        [red, green, blue] => Some([red / 255.0, green / 255.0, blue / 255.0, 1.0]),
        [red, green, blue, opacity] => Some([red / 255.0, green / 255.0, blue / 255.0, opacity]),
        _ => None,
    }
}

/// A colour over an opaque one.
fn blend(over: Colour, under: Colour) -> Colour {
    let opacity = over[3];
    let part = |at: usize| over[at].mul_add(opacity, under[at] * (1.0 - opacity));
    [part(0), part(1), part(2), 1.0]
}

fn ratio(one: Colour, other: Colour) -> f64 {
    let luminances = [one, other].map(luminance);
    let lower = luminances[0].min(luminances[1]);
    let higher = luminances[0].max(luminances[1]);
    (higher + 0.05) / (lower + 0.05)
}

fn luminance([red, green, blue, _]: Colour) -> f64 {
    let linear = |part: f64| {
        if part <= 0.04045 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126f64.mul_add(
        linear(red),
        0.7152f64.mul_add(linear(green), 0.0722 * linear(blue)),
    )
}
