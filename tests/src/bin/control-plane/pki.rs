//! The certificates of the control plane: one CA, which signs those of servers and users.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose,
};

/// Writes `NAME.crt` and `NAME.key` files to one folder.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name("sluice-e2e", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
        Self { folder: folder.into(), authority }
    }

    /// A server certificate for these addresses.
    pub fn server(&self, name: &str, addresses: &[&str]) {
        let addresses: Vec<String> = addresses.iter().map(|address| String::from(*address)).collect();
        let mut params = CertificateParams::new(addresses).unwrap();
        params.distinguished_name = distinguished_name(name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.write(name, params);
    }

    /// A client certificate for a user of the API.
    pub fn user(&self, name: &str, user: &str, group: Option<&str>) {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.write(name, params);
    }

    /// A key pair that signs tokens: `NAME.key` and `NAME.pub`.
    pub fn signer(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        std::fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.folder.join(format!("{name}.pub")), key.public_key_pem()).unwrap();
    }

    fn write(&self, name: &str, params: CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        std::fs::write(self.folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn distinguished_name(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject
}
