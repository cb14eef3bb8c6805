use super::*;

fn nowhere() -> InClusterConfig {
    InClusterConfig { host: String::new(), port: String::new(), service_account: "/nonexistent".into() }
}

fn problem(kubeconfig: Option<&Path>, master: Option<&str>, pod: &InClusterConfig) -> String {
    locate(kubeconfig, master, pod).unwrap_err().to_string()
}

/// A kubeconfig file beside which other files can be put.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn cluster(kubeconfig: &Kubeconfig) -> &Cluster {
    kubeconfig.clusters[0].cluster.as_ref().unwrap()
}

fn user(kubeconfig: &Kubeconfig) -> &AuthInfo {
    kubeconfig.auth_infos[0].auth_info.as_ref().unwrap()
}

#[test]
fn errors_are_those_of_upstream() {
    assert_eq!(
        problem(None, None, &nowhere()),
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    );
    assert_eq!(problem(Some(Path::new("/nope")), None, &nowhere()), "stat /nope: no such file or directory");
    let nothing = "invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER \
                   environment variable";
    for (text, want) in [
        ("", nothing),
        ("{apiVersion: v1, kind: Config}", nothing),
        ("{current-context: a}", "context \"a\" does not exist"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}]}",
            "auth info \"u\" does not exist",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}]}",
            "cluster \"c\" does not exist",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}], clusters: [{name: c, cluster: {}}]}",
            "invalid configuration: no server found for cluster \"c\"",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],
              clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: /no/ca}}],
              users: [{name: u, user: {client-certificate: /no/crt}}]}",
            "invalid configuration: [unable to read client-cert /no/crt for u due to open /no/crt: no such file or \
             directory, unable to read certificate-authority /no/ca for c due to open /no/ca: no such file or \
             directory]",
        ),
    ] {
        let (_folder, path) = file(text);
        assert_eq!(problem(Some(&path), None, &nowhere()), want, "{text}");
    }
}

#[test]
fn a_pod_has_its_own_credentials_and_may_lack_a_ca() {
    let folder = tempfile::tempdir().unwrap();
    let service_account = folder.path().to_owned();
    let pod = InClusterConfig { host: "fd00::1".into(), port: "6443".into(), service_account };
    let token = folder.path().join("token");
    let (want, shown) = ("no such file or directory", token.display());
    assert_eq!(problem(None, None, &pod), format!("open {shown}: {want}"));
    fs::write(&token, "secret").unwrap();
    let found = locate(None, None, &pod).unwrap();
    assert_eq!(cluster(&found).server.as_deref(), Some("https://[fd00::1]:6443"));
    assert_eq!(cluster(&found).certificate_authority, None);
    assert_eq!(files(&found), std::slice::from_ref(&token));
    fs::write(folder.path().join("ca.crt"), "").unwrap();
    assert_eq!(files(&locate(None, None, &pod).unwrap()), [folder.path().join("ca.crt"), token]);

    let (_folder, empty) = file("");
    let found = locate(Some(&empty), None, &pod).unwrap();
    assert!(user(&found).token_file.is_some(), "a file that says nothing leaves it to the pod");
}

#[test]
fn master_replaces_only_the_server_of_the_file() {
    let (_folder, path) = file(
        "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],
          clusters: [{name: c, cluster: {server: 'https://x', tls-server-name: kube}}],
          users: [{name: u, user: {token: '', tokenFile: secret}}]}",
    );
    let found = locate(Some(&path), Some("https://y:1/prefix"), &nowhere()).unwrap();
    assert_eq!(cluster(&found).server.as_deref(), Some("https://y:1/prefix"));
    assert_eq!(cluster(&found).tls_server_name.as_deref(), Some("kube"));
    assert!(user(&found).token.is_none(), "an empty token is none");
    assert_eq!(files(&found), [path.with_file_name("secret")], "relative to the file");
}

#[test]
fn credentials_are_not_sent_without_tls() {
    let (_folder, path) = file(
        "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],
          clusters: [{name: c, cluster: {server: 'http://x'}}],
          users: [{name: u, user: {token: secret, as: admin}}]}",
    );
    let found = locate(Some(&path), None, &nowhere()).unwrap();
    assert!(user(&found).token.is_none());
    assert_eq!(user(&found).impersonate.as_deref(), Some("admin"));
}

#[test]
fn a_master_without_a_scheme_uses_http() {
    let found = locate(None, Some("127.0.0.1:8080"), &nowhere()).unwrap();
    assert_eq!(cluster(&found).server.as_deref(), Some("http://127.0.0.1:8080"));
}

#[test]
fn errors_do_not_contain_the_content_of_the_kubeconfig() {
    for text in [
        "{users: [{name: u, user: {token: sesame}}], clusters: 7}",
        "users:\n- name: u\n  user:\n    token: sesame\n   broken",
        "users: [{name: u, user: {token: [sesame]}}]",
    ] {
        let (_folder, path) = file(text);
        let shown = problem(Some(&path), None, &nowhere());
        assert!(shown.starts_with("error loading config file ") && !shown.contains("sesame"), "{shown}");
    }
}
