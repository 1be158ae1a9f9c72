//! Tests of `[registry]`.

use super::*;

/// The registry whose credentials a host gets, with this configuration.
fn credentials_of(text: &str, host: &str) -> Option<String> {
    let etc = Etc::new(&format!("version = 1\n{text}"));
    let loaded = load(&etc.sources()).unwrap();
    let hosts = &loaded.effective.config.registry.hosts;
    hosts.get(host)?.send_credentials_of.clone()
}

#[test]
fn hosts_are_written_in_one_line_or_as_tables() {
    for text in [
        "[registry]\nhosts = { \"mirror.example:5000\" = { send_credentials_of = \"docker.io\" } }\n",
        "[registry.hosts.\"mirror.example:5000\"]\nsend_credentials_of = \"docker.io\"\n",
        "[registry.hosts]\n\"mirror.example:5000\".send_credentials_of = \"docker.io\"\n",
    ] {
        let found = credentials_of(text, "mirror.example:5000");
        assert_eq!(found.as_deref(), Some("docker.io"), "{text}");
        assert_eq!(credentials_of(text, "mirror.example"), None, "{text}");
    }
    assert_eq!(credentials_of("", "mirror.example:5000"), None);
    let unset = "[registry.hosts.\"mirror.example\"]\n";
    assert_eq!(credentials_of(unset, "mirror.example"), None);
}

#[test]
fn start_refuses_what_it_does_not_know_of_a_host() {
    for key in ["send_credential_of", "credentials", "skip_verify"] {
        let text =
            format!("version = 1\n[registry.hosts.\"mirror.example\"]\n{key} = \"docker.io\"\n");
        let etc = Etc::new(&text);
        let error = load_for_start(&etc.sources()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let text = message(
        "version = 1\n[registry.hosts.\"https://m\"]\nsend_credentials_of = \"a.example\"\n",
    );
    assert!(
        text.starts_with("config.toml:")
            && text.contains("registry.hosts")
            && text.contains("is no host"),
        "{text}"
    );
}
