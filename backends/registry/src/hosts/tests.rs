//! Tests of finding and reading the configuration of hosts.

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A `certs.d` directory with files in it.
struct Root(TempDir);

impl Root {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = Self(TempDir::new().unwrap());
        for (name, content) in files {
            let path = root.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

fn load_for(image: &str, roots: &[&Root]) -> Result<Vec<Host>> {
    let roots: Vec<PathBuf> = roots.iter().map(|root| root.path()).collect();
    load(&roots, &image.parse().unwrap())
}

fn urls(hosts: &[Host]) -> Vec<String> {
    hosts
        .iter()
        .map(|host| host.url("r/manifests/t").to_string())
        .collect()
}

#[track_caller]
fn check_key(toml: &str, expected: &str) {
    let root = Root::new(&[("a.example/hosts.toml", toml)]);
    match load_for("a.example/x", &[&root]) {
        Err(Error::InvalidConfig { file, key, .. }) => {
            assert!(file.ends_with("a.example/hosts.toml"));
            assert_eq!(key.as_deref(), Some(expected), "{toml}");
        }
        other => panic!("{toml}: {other:?}"),
    }
}

#[test]
fn without_configuration_the_registry_is_asked_with_tls() {
    let hosts = load_for("busybox", &[]).unwrap();
    assert_eq!(
        urls(&hosts),
        ["https://registry-1.docker.io/v2/r/manifests/t"]
    );
    assert!(hosts[0].is_registry && hosts[0].plain_http == PlainHttp::Never);
    let hosts = load_for("a.example:8443/x", &[&Root::new(&[])]).unwrap();
    assert_eq!(urls(&hosts), ["https://a.example:8443/v2/r/manifests/t"]);
}

#[test]
fn loopback_may_be_plain_unless_the_port_says_otherwise() {
    let check = |image: &str, scheme: &str, plain_http: PlainHttp, skip_verify: Option<bool>| {
        let host = &load_for(image, &[]).unwrap()[0];
        assert_eq!(
            (host.base.scheme(), host.plain_http),
            (scheme, plain_http),
            "{image}"
        );
        assert_eq!(host.tls.skip_verify, skip_verify, "{image}");
        assert!(host.is_registry);
    };
    check(
        "localhost:5000/x",
        "https",
        PlainHttp::IfTlsFails,
        Some(true),
    );
    check(
        "127.8.0.1:5000/x",
        "https",
        PlainHttp::IfTlsFails,
        Some(true),
    );
    check("[::1]:5000/x", "https", PlainHttp::IfTlsFails, Some(true));
    check("localhost/x", "https", PlainHttp::Never, Some(true));
    check("localhost:443/x", "https", PlainHttp::Never, Some(true));
    check("localhost:80/x", "http", PlainHttp::Never, None);
    check("10.0.0.1:5000/x", "https", PlainHttp::Never, None);
    check("localhost.example:5000/x", "https", PlainHttp::Never, None);
}

#[test]
fn mirrors_come_in_the_order_of_the_file_and_the_server_last() {
    let root = Root::new(&[(
        "docker.io/hosts.toml",
        r#"
            server = "https://registry-1.docker.io"
            [host."https://z.example"]
              capabilities = ["pull"]
            [host."http://a.example:5000/path"]
            [host."m.example/v2"]
              capabilities = ["Pull", "Resolve"]
              override_path = false
            [host."https://b.example/api"]
              override_path = true
              dial_timeout = "1m1.5s"
              proxy = "socks5://p.example:1080"
              [host."https://b.example/api".header]
                X-One = "1"
                x-two = ["a", "b"]
        "#,
    )]);
    let hosts = load_for("busybox", &[&root]).unwrap();
    assert_eq!(
        urls(&hosts),
        [
            "https://z.example/v2/r/manifests/t?ns=docker.io",
            "http://a.example:5000/path/v2/r/manifests/t?ns=docker.io",
            "https://m.example/v2/r/manifests/t?ns=docker.io",
            "https://b.example/api/r/manifests/t?ns=docker.io",
            "https://registry-1.docker.io/v2/r/manifests/t",
        ]
    );
    let resolve: Vec<bool> = hosts.iter().map(|host| host.capabilities.resolve).collect();
    assert_eq!(resolve, [false, true, true, true, true]);
    assert_eq!(
        hosts
            .iter()
            .map(|host| host.is_registry)
            .collect::<Vec<_>>(),
        [false, false, false, false, true]
    );
    let b = &hosts[3];
    assert_eq!(b.dial_timeout, Some(Duration::from_millis(61_500)));
    assert_eq!(b.proxy.as_ref().unwrap().port(), Some(1080));
    assert_eq!(b.headers.get("x-one").unwrap(), "1");
    assert_eq!(b.headers.get_all("x-two").iter().count(), 2);
}

#[test]
fn top_level_keys_are_for_the_registry_and_it_is_used_without_a_server() {
    let root = Root::new(&[(
        "a.example_5000_/hosts.toml",
        "skip_verify = true\ncapabilities = [\"pull\"]\n[header]\nx = \"y\"\n",
    )]);
    let hosts = load_for("a.example:5000/x", &[&root]).unwrap();
    assert_eq!(urls(&hosts), ["https://a.example:5000/v2/r/manifests/t"]);
    assert!(hosts[0].is_registry && !hosts[0].capabilities.resolve);
    assert_eq!(hosts[0].tls.skip_verify, Some(true));
    assert_eq!(hosts[0].headers.get("x").unwrap(), "y");
}

#[test]
fn server_with_another_name_is_a_mirror() {
    let root = Root::new(&[("_default/hosts.toml", "server = \"https://mirror.example\"")]);
    let hosts = load_for("quay.io/a/b", &[&root]).unwrap();
    assert_eq!(
        urls(&hosts),
        ["https://mirror.example/v2/r/manifests/t?ns=quay.io"]
    );
    assert!(!hosts[0].is_registry);
    assert!(load_for("mirror.example/a", &[&root]).unwrap()[0].is_registry);
    assert!(load_for("mirror.example:443/a", &[&root]).unwrap()[0].is_registry);
}

#[test]
fn tls_settings_on_a_plain_host_prefer_tls() {
    let root = Root::new(&[(
        "_default/hosts.toml",
        "[host.\"http://m.example:5000\"]\nskip_verify = false\n[host.\"http://n.example\"]\nskip_verify = true\n",
    )]);
    let hosts = load_for("quay.io/a/b", &[&root]).unwrap();
    assert_eq!(
        (hosts[0].base.scheme(), hosts[0].plain_http),
        ("https", PlainHttp::IfServerIsPlain)
    );
    assert_eq!(
        (hosts[1].base.scheme(), hosts[1].plain_http),
        ("http", PlainHttp::Never)
    );
}

#[test]
fn directories_are_searched_in_containerds_order() {
    let server = |name: &str| format!("server = \"https://{name}\"");
    let under = server("under");
    let colon = server("colon");
    let default = server("default");
    let root = Root::new(&[
        ("a.example_5000_/hosts.toml", &under),
        ("a.example:5000/hosts.toml", &colon),
        ("_default/hosts.toml", &default),
    ]);
    let host = |roots: &[&Root], image: &str| load_for(image, roots).unwrap()[0].authority();
    assert_eq!(host(&[&root], "a.example:5000/x"), "under");
    assert_eq!(host(&[&root], "a.example/x"), "default");
    fs::remove_dir_all(root.path().join("a.example_5000_")).unwrap();
    assert_eq!(host(&[&root], "a.example:5000/x"), "colon");
    let other = Root::new(&[("b.example/hosts.toml", &server("other"))]);
    assert_eq!(host(&[&other, &root], "a.example:5000/x"), "colon");
    assert_eq!(host(&[&other, &root], "b.example/x"), "other");
    // The first root with settings for a registry is used, even if only with its default.
    assert_eq!(host(&[&root, &other], "b.example/x"), "default");
}

#[test]
fn certificates_in_dockers_layout_are_used_without_hosts_toml() {
    let root = Root::new(&[
        ("a.example/ca.crt", "CA"),
        ("a.example/me.cert", "C"),
        ("a.example/me.key", "K"),
    ]);
    let hosts = load_for("a.example/x", &[&root]).unwrap();
    assert_eq!(hosts[0].tls.authorities[0].content, b"CA");
    let [client] = hosts[0].tls.clients.as_slice() else {
        panic!("{:?}", hosts[0].tls.clients)
    };
    let key = client.key.as_ref().map(|key| key.content.as_slice());
    assert_eq!(
        (client.certificate.content.as_slice(), key),
        (&b"C"[..], Some(&b"K"[..]))
    );
    // As containerd reads it: a key may be in the file of its certificate, and one alone means nothing.
    fs::rename(
        root.path().join("a.example/me.key"),
        root.path().join("a.example/other.key"),
    )
    .unwrap();
    fs::write(root.path().join("a.example/second.cert"), "D").unwrap();
    let tls = load_for("a.example/x", &[&root]).unwrap().remove(0).tls;
    let found: Vec<_> = tls
        .clients
        .iter()
        .map(|pair| pair.certificate.content.as_slice())
        .collect();
    assert_eq!(found, [b"C", b"D"]);
    assert!(tls.clients.iter().all(|pair| pair.key.is_none()));
}

#[test]
fn certificates_may_be_written_in_every_documented_form() {
    let both = "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n";
    // How many authorities, and whether each client certificate has its key in another file.
    let check = |toml: &str, authorities: usize, separate_keys: &[bool]| {
        let root = Root::new(&[
            ("a.example/hosts.toml", toml),
            ("a.example/one.pem", both),
            ("a.example/two.pem", "-----BEGIN CERTIFICATE-----"),
            ("a.example/two.key", "-----BEGIN EC PRIVATE KEY-----"),
        ]);
        let tls = load_for("a.example/x", &[&root]).unwrap().remove(0).tls;
        assert_eq!(tls.authorities.len(), authorities, "{toml}");
        let keys: Vec<bool> = tls.clients.iter().map(|pair| pair.key.is_some()).collect();
        assert_eq!(keys, separate_keys, "{toml}");
    };
    check("ca = \"one.pem\"", 1, &[]);
    check("ca = [\"one.pem\", \"two.pem\"]", 2, &[]);
    check("client = []", 0, &[]);
    check("client = \"one.pem\"", 0, &[false]);
    check("client = [\"one.pem\"]", 0, &[false]);
    check("client = [\"one.pem\", \"one.pem\"]", 0, &[false, false]);
    check("client = [[\"two.pem\", \"two.key\"]]", 0, &[true]);
    check("client = [[\"one.pem\", \"\"]]", 0, &[false]);
    check("client = [\"two.pem\", \"two.key\"]", 0, &[true]);
    // The example of containerd's documentation.
    check(
        "client = [[\"two.pem\", \"two.key\"], [\"one.pem\", \"\"]]",
        0,
        &[true, false],
    );
}

#[test]
fn errors_name_the_file_and_the_key() {
    check_key("server = 1", "server");
    check_key("server = \"ftp://x\"", "server");
    check_key("server = \"https://user:secret@x\"", "server");
    check_key("server = \"https://x?y\"", "server");
    check_key("host = 1", "host");
    check_key("[host.\"https://\"]", "host.\"https://\"");
    check_key(
        "[host.\"https://m\"]\ncapabilities = [1]",
        "host.\"https://m\".capabilities",
    );
    check_key("capabilities = \"pull\"", "capabilities");
    check_key("ca = \"missing.pem\"", "ca");
    check_key("ca = [1]", "ca");
    check_key("client = [[\"a\"]]", "client");
    check_key("client = 1", "client");
    check_key("skip_verify = \"yes\"", "skip_verify");
    check_key("override_path = 1\nserver = \"x\"", "override_path");
    check_key("header = 1", "header");
    check_key("[header]\n\"a b\" = \"c\"", "header.a b");
    check_key("[header]\na = 1", "header.a");
    check_key("[header]\na = \"\\n\"", "header.a");
    check_key("dial_timeout = \"soon\"", "dial_timeout");
    check_key("dial_timeout = \"0s\"", "dial_timeout");
    check_key("proxy = \"proxy:8080\"", "proxy");
    check_key("proxy = \"http://p/path\"", "proxy");
    let root = Root::new(&[("a.example/hosts.toml", "server = \n")]);
    let error = load_for("a.example/x", &[&root]).unwrap_err();
    assert!(
        error.to_string().contains("hosts.toml") && std::error::Error::source(&error).is_some()
    );
    assert!(
        !load_for(
            "a.example/x",
            &[&Root::new(&[(
                "a.example/hosts.toml",
                "server=\"https://u:secret@x\""
            )])]
        )
        .unwrap_err()
        .to_string()
        .contains("secret")
    );
}

#[test]
fn what_a_newer_containerd_reads_is_ignored() {
    // Whether the mirror may be used for content by digest, and for tags.
    for (mirror, expected) in [
        (
            "capabilities = [\"pull\", \"resolve\", \"referrers\"]",
            (true, true),
        ),
        ("capabilities = [\"Referrers\", \"PULL\"]", (true, false)),
        ("capabilities = [\"\", \"resolve\"]", (false, true)),
        ("capabilities = [\"referrers\"]", (false, false)),
        ("capabilities = []\nfuture = 2", (true, true)),
        (
            "weight = { read = 1 }\ncapabilities = [\"pull\"]",
            (true, false),
        ),
        ("[host.\"https://m\".auth]\nhelper = [\"x\"]", (true, true)),
    ] {
        let text = format!("future = 1\n[host.\"https://m\"]\n{mirror}\n[future_table]\na = 1\n");
        let root = Root::new(&[("a.example/hosts.toml", &text)]);
        let hosts = load_for("a.example/x", &[&root]).unwrap();
        assert_eq!(hosts.len(), 2, "{mirror}");
        let Capabilities { pull, resolve, .. } = hosts[0].capabilities;
        assert_eq!((pull, resolve), expected, "{mirror}");
        assert_eq!(hosts[1].capabilities, Capabilities::ALL, "{mirror}");
    }
}

#[test]
fn empty_file_configures_nothing() {
    let root = Root::new(&[("a.example/hosts.toml", " \n")]);
    assert_eq!(load_for("a.example/x", &[&root]).unwrap().len(), 1);
}

#[test]
fn durations_parse_as_in_go() {
    let check = |text: &str, expected: Option<u64>| {
        assert_eq!(
            file::parse_duration(text),
            expected.map(Duration::from_millis),
            "{text}"
        );
    };
    check("1s", Some(1000));
    check("1.5s", Some(1500));
    check("1m30s", Some(90_000));
    check("2h", Some(7_200_000));
    check("250ms", Some(250));
    check("2000us", Some(2));
    check("2000\u{b5}s", Some(2));
    check("0", Some(0));
    for wrong in [
        "",
        "+",
        "1",
        "s",
        "1x",
        "-1s",
        "1..2s",
        "1s ",
        "9999999999999999999999h",
    ] {
        check(wrong, None);
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(text: String) {
        let _ = file::parse(Path::new("hosts.toml"), &text, &"a.example/x".parse().unwrap());
        let _ = file::parse_duration(&text);
    }

    #[test]
    fn strange_values_never_panic(
        key in prop::sample::select(vec![
            "server", "host", "capabilities", "ca", "client", "skip_verify", "header", "override_path",
            "dial_timeout", "proxy",
        ]),
        value in prop::sample::select(vec![
            "1", "true", "\"\"", "\"://\"", "\"http://[\"", "\"http:///v2\"", "[]", "[[]]", "[1]", "[\"\"]", "{}", "{ a = 1 }",
            "1979-05-27", "\"\u{e9}1s\"", "[[\"\", \"\"]]",
        ]),
        below in prop::sample::select(vec!["", "[host.\"\"]\n", "[host.\"m\"]\n", "[host.\"http://[::1]:1/../v2\"]\n"]),
    ) {
        let text = format!("{below}{key} = {value}");
        let _ = file::parse(Path::new("hosts.toml"), &text, &"a.example/x".parse().unwrap());
    }
}

#[test]
fn non_regular_or_oversized_file_is_rejected_without_blocking() {
    let pipe = |path: &Path| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
    };
    let load_error = |root: &Root| {
        let error = load_for("a.example/x", &[root]).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        format!("{error}: {cause}")
    };
    let root = Root::new(&[("a.example/other", "")]);
    pipe(&root.path().join("a.example/hosts.toml"));
    assert!(
        load_error(&root).ends_with("hosts.toml: cannot be read: it is no regular file but a FIFO"),
        "{}",
        load_error(&root)
    );
    let root = Root::new(&[("a.example/hosts.toml", "ca = \"ca.pem\"")]);
    pipe(&root.path().join("a.example/ca.pem"));
    assert!(
        load_error(&root).contains("no regular file"),
        "{}",
        load_error(&root)
    );
    fs::write(
        root.path().join("a.example/hosts.toml"),
        "ca = \"/dev/zero\"",
    )
    .unwrap();
    assert!(
        load_error(&root).contains("no regular file"),
        "{}",
        load_error(&root)
    );
    fs::write(
        root.path().join("a.example/hosts.toml"),
        "#".repeat((1 << 20) + 1),
    )
    .unwrap();
    assert!(
        load_error(&root).contains("longer than 1048576 bytes"),
        "{}",
        load_error(&root)
    );
}
