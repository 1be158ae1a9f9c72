//! Tests of the settings of traces.

use super::*;

fn read(env: &[(&str, &str)]) -> Result<Option<TraceSettings>, TraceSettingsError> {
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    TraceSettings::from_env(&env, "node-1")
}

fn with(name: &str, value: &str) -> Result<TraceSettings, TraceSettingsError> {
    let read = read(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
        (name, value),
    ])?;
    Ok(read.expect("it has an endpoint"))
}

#[test]
fn traces_are_off_without_an_endpoint_and_if_switched_off() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    for off in [
        &[][..],
        &[
            ("OTEL_SERVICE_NAME", "x"),
            ("OTEL_TRACES_SAMPLER", "nonsense"),
        ],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "  ")],
        &[endpoint, ("OTEL_SDK_DISABLED", "True")],
        &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
    ] {
        assert!(read(off).unwrap().is_none(), "{off:?}");
    }
    assert!(
        read(&[endpoint, ("OTEL_SDK_DISABLED", "yes")])
            .unwrap()
            .is_some()
    );
}

#[test]
fn defaults_are_those_of_opentelemetry() {
    let TraceSettings {
        endpoint,
        authorities,
        headers,
        limit,
        resource,
        sampler,
    } = with("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").unwrap();
    assert_eq!(endpoint, "http://127.0.0.1:4317");
    assert!(headers.is_empty() && authorities.is_none());
    assert_eq!(
        (limit, sampler),
        (Duration::from_secs(10), Sampler::CallerOrAll)
    );
    let expected = [
        ("host.name", "node-1"),
        ("service.name", "switchyard"),
        ("service.version", VERSION),
    ];
    assert_eq!(
        resource,
        expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
    );
}

#[test]
fn port_of_an_endpoint_is_that_of_its_scheme_or_one_that_there_is() {
    let endpoint = |value| read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", value)]);
    for good in [
        "http://127.0.0.1",
        "https://collector",
        "http://[::1]",
        "http://[::1]:4317",
        "http://a:65535/",
    ] {
        assert!(
            endpoint(good).is_ok_and(|settings| settings.is_some()),
            "{good}"
        );
    }
    for bad in [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:",
        "http://[::1]:70000",
        "http://a:b",
    ] {
        let error = endpoint(bad).unwrap_err().to_string();
        assert!(
            error.contains("OTEL_EXPORTER_OTLP_ENDPOINT must be http://HOST:PORT"),
            "{bad}: {error}"
        );
    }
}

#[test]
fn variables_of_traces_come_before_those_of_all_signals() {
    let settings = with(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "https://collector:4317/",
    )
    .unwrap();
    assert!(settings.is_encrypted());
    let error = with("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is \"http/json\""),
        "{error}"
    );
    assert_eq!(
        with("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250")
            .unwrap()
            .limit,
        Duration::from_millis(250)
    );
}

#[test]
fn resource_of_the_operator_comes_before_ours() {
    let of = |settings: TraceSettings, key| {
        settings
            .resource
            .into_iter()
            .find(|(found, _)| found == key)
            .map(|(_, value)| value)
    };
    let set = || {
        with(
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a, host.name=b%2Cc ,deployment=x=y",
        )
        .unwrap()
    };
    assert_eq!(of(set(), "service.name").as_deref(), Some("a"));
    assert_eq!(of(set(), "host.name").as_deref(), Some("b,c"));
    assert_eq!(of(set(), "deployment").as_deref(), Some("x=y"));
    assert_eq!(
        of(with("OTEL_SERVICE_NAME", "n").unwrap(), "service.name").as_deref(),
        Some("n")
    );
}

#[test]
fn samplers_have_the_names_of_opentelemetry() {
    let with_share = |name, share| {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        let read = read(&[
            endpoint,
            ("OTEL_TRACES_SAMPLER", name),
            ("OTEL_TRACES_SAMPLER_ARG", share),
        ]);
        read.map(|settings| settings.unwrap().sampler)
    };
    assert_eq!(with_share("always_on", "ignored"), Ok(Sampler::All));
    assert_eq!(with_share("always_off", ""), Ok(Sampler::Nothing));
    assert_eq!(with_share("traceidratio", ""), Ok(Sampler::Share(1.0)));
    assert_eq!(
        with_share("parentbased_always_off", ""),
        Ok(Sampler::CallerOrNothing)
    );
    assert_eq!(
        with_share("parentbased_traceidratio", "0.25"),
        Ok(Sampler::CallerOrShare(0.25))
    );
    for share in ["2", "-1", "NaN", "x"] {
        with_share("traceidratio", share).unwrap_err();
    }
    with_share("jaeger_remote", "").unwrap_err();
}

#[test]
fn headers_are_sent_and_never_shown() {
    let settings = with(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Authorization=Bearer%20se=cret,x-team = a",
    )
    .unwrap();
    assert_eq!(
        settings.headers.get("authorization").unwrap(),
        "Bearer se=cret"
    );
    assert_eq!(settings.headers.get("x-team").unwrap(), "a");
    let shown = format!("{settings:?}");
    assert!(
        shown.contains("authorization") && !shown.contains("cret"),
        "{shown}"
    );
    for wrong in [
        "secret",
        "a b=secret",
        "a=secret%0A",
        "a=secret%",
        "a=secret%zz",
        "=secret",
        "x-bin=secret",
    ] {
        let error = with("OTEL_EXPORTER_OTLP_HEADERS", wrong)
            .unwrap_err()
            .to_string();
        assert!(
            !error.contains("secret") && error.contains("OTEL_EXPORTER_OTLP_HEADERS"),
            "{wrong}: {error}"
        );
    }
}

#[test]
fn what_is_not_spoken_is_refused_with_the_name_of_the_variable() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "unix:///run/otel.sock",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://collector:4318/v1/traces",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://me:secret@collector:4317",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "86400000"),
        ("OTEL_RESOURCE_ATTRIBUTES", "novalue"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ] {
        let error = with(name, value).unwrap_err().to_string();
        assert!(error.contains(name) && !error.contains("secret"), "{error}");
    }
}
