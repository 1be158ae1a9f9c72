//! Tests of templates: what docker's users write, and what is refused.

use proptest::prelude::*;

use super::any_bytes::{Given, check_any, facts};
use super::*;

#[track_caller]
fn check(template: &str, expected: &str) {
    assert_eq!(
        expand_field(template, &facts()).as_deref(),
        Ok(expected),
        "{template}"
    );
}

#[track_caller]
fn refused(template: &str, why: &str) {
    let error = expand_field(template, &facts()).unwrap_err().to_string();
    assert!(error.ends_with(why), "{template}: {error}");
}

#[test]
fn facts_that_docker_documents_expand() {
    check("plain } } text", "plain } } text");
    check("{{.Service.ID}}/{{.Service.Name}}", "svc1/web");
    check("{{ .Node.ID }}-{{.Node.Hostname}}", "node1-host-1");
    check(
        "{{.Node.Platform.Architecture}}/{{.Node.Platform.OS}}",
        "x86_64/linux",
    );
    check(
        "{{.Task.ID}} {{.Task.Name}} {{.Task.Slot}}",
        "task1 web.3.task1 3",
    );
    check("{{.Service.Labels.env}}", "prod");
    check("{{index .Service.Labels \"com.acme.team\"}}", "blue");
    check("{{index .Service.Labels `none`}}!", "!");
    check("{{.Service.Labels}}", "map[com.acme.team:blue env:prod]");
    check("{{$.Task.Slot}}{{ ($).Task.Slot }}{{(.Task).Slot}}", "333");
}

#[test]
fn functions_pipelines_and_conditions_follow_go() {
    check("{{join \"-\" .Service.Name .Task.Slot \"x\"}}", "web-3-x");
    check("{{.Task.Slot | join \"-\" .Service.Name}}", "web-3");
    check(
        "{{if eq .Task.Slot \"1\" \"3\"}}odd{{else}}other{{end}}",
        "odd",
    );
    check(
        "{{if eq .Task.Slot \"1\"}}a{{else if ne .Service.Name \"db\"}}b{{else}}c{{end}}",
        "b",
    );
    check(
        "{{if false}}a{{else if .Service.Labels}}{{if true}}b{{end}}{{end}}",
        "b",
    );
    check(
        "{{if not (index .Service.Labels \"x\")}}none{{end}}",
        "none",
    );
    check("{{or (index .Service.Labels \"x\") .Service.Name}}", "web");
    check("{{and .Service.Name (.Task.Slot | eq \"3\")}}", "true");
    check("{{or .Service.Name (.Nothing)}}", "web");
    check("a {{- \" b \" -}} c", "a b c");
    check("a{{/* {{ comment }} */}}b {{- /* c */ -}} d", "abd");
    check("{{\"a\\n\\t\\\"\\\\\"}}{{`\\n`}}", "a\n\t\"\\\\n");
    check("{{\"}}\"}}", "}}");
}

#[test]
fn malformed_and_unsupported_templates_are_refused_by_name() {
    refused("{{", "an action is not closed");
    refused("{{}}", "an action is empty");
    refused("{{\"a}}", "a string is not closed");
    refused("{{.Task.Foo}}", "there is no such field: \"Foo\"");
    refused(
        "{{.Service.Labels.tier}}",
        "map has no entry for key: \"tier\"",
    );
    refused("{{.Task.ID.X}}", "a text has no field: \"X\"");
    refused("{{.Task}}", "only texts can be printed: name a field");
    refused(
        "{{range .Service.Labels}}{{end}}",
        "not supported: \"range\"",
    );
    refused("{{printf \"%s\" .Task.ID}}", "not supported: \"printf\"");
    refused("{{with .Task}}{{end}}", "not supported: \"with\"");
    refused("{{$x := .Task.ID}}", "variables are not supported");
    refused(
        "{{uppercase .Task.ID}}",
        "there is no such function: \"uppercase\"",
    );
    refused(
        "{{join 1 .Task.ID}}",
        "numbers and characters are not supported",
    );
    refused(
        "{{join .Service.Labels .Task.ID}}",
        "join takes texts alone",
    );
    refused("{{.Task.ID \"x\"}}", "an argument of what is no function");
    refused(
        "{{.Task.ID | .Task.ID}}",
        "what follows \"|\" is no function",
    );
    refused("{{.Task.ID |}}", "a value is missing");
    refused("{{(.Task.ID}}", "\"(\" is not closed");
    refused("{{.Task.ID)}}", "\")\" without \"(\"");
    refused("{{if .Task.ID}}", "\"if\" without \"end\"");
    refused("{{end}}", "\"end\" without \"if\"");
    refused("{{else}}", "\"else\" without \"if\"");
    refused(
        "{{if true}}{{else}}{{else}}{{end}}",
        "\"else\" after \"else\"",
    );
    refused("{{if}}{{end}}", "a value is missing");
    refused("{{/* open", "a comment is not closed");
    refused("{{eq .Task.ID true}}", "incompatible types for comparison");
    refused("{{eq .Task.ID}}", "a function has wrong arguments");
    refused(
        "{{secret \"db_password\"}}",
        "are functions of secrets and configs alone",
    );
    refused(
        "{{\"\\x41\"}}",
        "only the escapes \\n, \\t, \\r, \\\\ and \\\" are supported",
    );
    refused("{{.Task.ID}}{{.Task.}}", "the name of a field is missing");
    refused("{{\"a\"\"b\"}}", "a space is missing");
}

#[test]
fn files_have_secrets_configs_and_variables_and_tell_that_they_are_secret() {
    let made = |template: &str| expand(template.as_bytes(), &facts(), &Given, FILE_MAX);
    let plain =
        made("port={{env \"PORT\"}}{{env \"NONE\"}} {{config \"/etc/site.conf\"}}").unwrap();
    assert_eq!(
        (plain.bytes.as_slice(), plain.is_secret),
        (b"port=80 site".as_slice(), false)
    );
    let secret = made("p={{ \"db_password\" | secret }}{{secret `binary`}}").unwrap();
    assert_eq!(
        (secret.bytes.as_slice(), secret.is_secret),
        (b"p=hunter2\xff\x00".as_slice(), true)
    );
    for (template, why) in [
        ("{{secret \"other\"}}", "secret target not found: \"other\""),
        ("{{config \"other\"}}", "config target not found: \"other\""),
        ("{{secret}}", "a function has wrong arguments"),
    ] {
        assert!(
            made(template).unwrap_err().to_string().ends_with(why),
            "{template}"
        );
    }
}

#[test]
fn error_of_a_secret_template_need_not_show_its_words() {
    let error = expand_field("{{hunter2}}", &facts()).unwrap_err();
    assert!(error.to_string().contains("hunter2"));
    assert_eq!(
        error.without_name().to_string(),
        "template, byte 2: there is no such function"
    );
}

#[test]
fn hostile_templates_are_bounded() {
    let deep = |open: &str, close: &str, count: usize| {
        format!("{}{}", open.repeat(count), close.repeat(count)).into_bytes()
    };
    let fails = |template: &[u8], why: &str| {
        let error = expand(template, &facts(), &Given, FILE_MAX)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with(why), "{error}");
    };
    fails(
        &deep("{{if true}}", "{{end}}", 5_000),
        "it is nested too deeply",
    );
    fails(
        format!("{{{{ {} }}}}", "(".repeat(100_000)).as_bytes(),
        "it is nested too deeply",
    );
    fails(&b"{{true}}".repeat(20_000), "it has too many parts");
    fails(
        format!("{{{{ and {} }}}}", "true ".repeat(50_000)).as_bytes(),
        "it has too many parts",
    );
    fails(&vec![b'a'; TEMPLATE_MAX + 1], "it is longer than 1 MiB");
    fails(&b"{{secret `large`}}".repeat(100), "the result is too long");
    // A value that doubles at each level.
    let mut doubled = "(join `` `0123456789` `0123456789`)".to_owned();
    for _ in 0..12 {
        doubled = format!("(join `` {doubled} {doubled})");
    }
    fails(
        format!("{{{{ if {doubled} }}}}{{{{ end }}}}").as_bytes(),
        "it has too many parts",
    );
    let wide = format!(
        "{{{{ if eq {} }}}}{{{{ end }}}}",
        "(secret `large`) ".repeat(1_000)
    );
    fails(wide.as_bytes(), "it takes too much work");
    let joined = format!(
        "{{{{ if join `` {} }}}}{{{{ end }}}}",
        "(secret `large`) ".repeat(1_000)
    );
    fails(joined.as_bytes(), "the result is too long");
}

proptest! {
    #[test]
    fn any_bytes_expand_or_are_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_any(&data);
    }

    #[test]
    fn any_sequence_of_words_expands_or_is_refused(
        words in proptest::collection::vec(
            prop_oneof![
                Just("{{"), Just("}}"), Just("{{-"), Just(" -}}"), Just("if "), Just("else "), Just("end"),
                Just("("), Just(")"), Just("|"), Just(".Task.ID "), Just(".Service.Labels "), Just("join "),
                Just("index "), Just("\"a\" "), Just("`b` "), Just("true "), Just("/*"), Just("*/"),
                Just("secret "), Just("eq "), Just("not "), Just("$"), Just("."), Just("text"), Just("\\"),
            ],
            0..40,
        ),
    ) {
        check_any(words.concat().as_bytes());
    }

    #[test]
    fn text_without_delimiters_is_copied(text in "[^{]{0,100}") {
        check(&text, &text);
    }

    #[test]
    fn quoted_text_expands_to_itself(text in "[a-z{}.|() ]{0,50}") {
        check(&format!("<{{{{\"{text}\"}}}}>"), &format!("<{text}>"));
    }
}
