//! Tests of the addresses of listeners.

use super::*;

#[test]
fn streaming_needs_a_reachable_url_and_matching_certificate() {
    let error = |text: &str| message(&format!("version = 1\n[cri.streaming]\n{text}\n"));
    let url = error("url = \"localhost:80\"");
    assert!(
        url.contains("cri.streaming.url") && url.contains("not an http:// or https:// URL"),
        "{url}"
    );
    let everywhere = error("listen = \"0.0.0.0:10010\"");
    assert!(
        everywhere.contains("set cri.streaming.url as well"),
        "{everywhere}"
    );
    for zoned in ["[fe80::1%4]:0", "[fe80::ab%1]:10010", "[fd00::1%2]:0"] {
        let unreachable = error(&format!("listen = \"{zoned}\""));
        assert!(
            unreachable.contains(zoned) && unreachable.contains("an address with a zone"),
            "{unreachable}"
        );
    }
    let half = error("tls_key = \"/k\"");
    assert!(half.contains("must be set together"), "{half}");
    let idle = error("idle_timeout_seconds = 0");
    assert!(idle.contains("must be at least 1"), "{idle}");
    let relative = error("tls_certificate = \"c\"\ntls_key = \"/k\"");
    assert!(relative.contains("not an absolute path"), "{relative}");
}

#[test]
fn listener_at_an_address_with_a_zone_is_told_apart() {
    let url = "listen = \"[fe80::1%4]:0\"\nurl = \"https://node.example\"";
    for (text, expected) in [
        (format!("version = 1\n[cri.streaming]\n{url}\n"), None),
        (
            "version = 1\n[admin]\nlisten = \"[fe80::1]:9640\"\n".to_owned(),
            None,
        ),
        (
            "version = 1\n[admin]\nlisten = \"[fe80::1%4]:9640\"\n".to_owned(),
            Some("browsers open no link to [fe80::1%4]:9640"),
        ),
    ] {
        let etc = Etc::new(&text);
        let loaded = load(&etc.sources()).unwrap();
        let warnings = warnings(&etc, &loaded);
        assert_eq!(
            warnings.len(),
            usize::from(expected.is_some()),
            "{warnings:?}"
        );
        let is_told = |expected: &str| warnings[0].contains(expected);
        assert!(expected.is_none_or(is_told), "{warnings:?}");
    }
}
