//! Fuzz targets: properties that hold for the context of any trace, and the name of any image, that a caller sends.
//! Called only by fuzzers and tests.

use crate::image::ImageReference;
use crate::trace::{SpanContext, TraceState};

/// Reads bytes as the `traceparent` of a caller, up to a line feed, and as its `tracestate` after that: what is
/// accepted is short, is read again as the same, and can be a header.
///
/// # Panics
/// If that does not hold.
pub fn trace_context(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    let (parent, state) = text.split_once('\n').unwrap_or((text, text));
    if let Some(context) = SpanContext::parse(parent) {
        let written = context.traceparent();
        assert_eq!(SpanContext::parse(&written).as_ref(), Some(&context));
        assert!(parent.is_ascii() && written.len() == 55);
        assert_eq!(written[3..52], parent[3..52]);
    }
    if let Some(state) = TraceState::parse(state) {
        let text = state.as_str();
        assert!(
            text.len() <= 512 && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')),
            "{text:?}"
        );
        assert_eq!(TraceState::parse(text).as_ref(), Some(&state));
    }
}

/// Reads bytes as an image's name: what is read is written the same way, and is bounded.
///
/// # Panics
/// If that does not hold.
pub fn image_reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(reference) = text.parse::<ImageReference>() else {
        return;
    };
    let written = reference.to_string();
    assert_eq!(
        written
            .parse::<ImageReference>()
            .expect("what is written can be read"),
        reference
    );
    assert!(reference.name().len() <= 255, "{written}");
    assert!(
        reference
            .tag()
            .is_none_or(|tag| (1..=128).contains(&tag.len())),
        "{written}"
    );
    assert!(
        reference.tag().is_some() || reference.digest().is_some(),
        "{written}"
    );
    assert!(
        written.bytes().all(|byte| byte.is_ascii_graphic()),
        "{written:?}"
    );
    assert!(
        !written.contains("..") && !written.contains("//"),
        "{written}"
    );
}
