//! Who we are, put on each request. The signing is `object_store`'s.

use std::sync::Arc;

use object_store::CredentialProvider;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::azure::{
    AzureAccessKey, AzureAuthorizer, AzureCredential, MicrosoftAzureBuilder,
};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpRequest, HttpRequestBody,
};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};

use super::http::{Call, StoreError};
use crate::spec::{AzureAuth, GcsAuth, Keys};

/// Signs requests.
#[derive(Debug)]
pub(super) enum Signer {
    Nobody,
    Aws { credential: AwsCredential, region: String },
    Azure { provider: AzureProvider, account: String },
    Token(String),
    Google(Arc<dyn CredentialProvider<Credential = GcpCredential>>),
}

#[derive(Debug)]
pub(super) enum AzureProvider {
    Key(AzureCredential),
    Identity(Arc<dyn CredentialProvider<Credential = AzureCredential>>),
}

/// Has credentials renewed with our own client, which follows no redirects.
#[derive(Debug)]
struct SharedClient(reqwest::Client);

impl HttpConnector for SharedClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

fn wrong(what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Settings(format!("{what}: {error}"))
}

impl Signer {
    pub(super) fn aws(keys: Option<&Keys>, region: &str) -> Self {
        let Some(keys) = keys else { return Self::Nobody };
        let token = keys.session_token.as_ref().map(|token| token.reveal().to_owned());
        let credential = AwsCredential {
            key_id: keys.access_key_id.clone(),
            secret_key: keys.secret_access_key.reveal().to_owned(),
            token: token.filter(|token| !token.is_empty()),
        };
        Self::Aws { credential, region: region.to_owned() }
    }

    pub(super) fn azure(
        client: &reqwest::Client,
        account: &str,
        container: &str,
        auth: &AzureAuth,
    ) -> Result<Self, StoreError> {
        let provider = match auth {
            AzureAuth::Anonymous => return Ok(Self::Nobody),
            AzureAuth::Key { key } => {
                let key = AzureAccessKey::try_new(key.reveal())
                    .map_err(|error| wrong("the account's key", &error))?;
                AzureProvider::Key(AzureCredential::AccessKey(key))
            }
            AzureAuth::ManagedIdentity { client_id } => {
                let store = MicrosoftAzureBuilder::new()
                    .with_account(account)
                    .with_container_name(container)
                    .with_client_id(client_id)
                    .with_http_connector(SharedClient(client.clone()))
                    .build()
                    .map_err(|error| wrong("the managed identity", &error))?;
                AzureProvider::Identity(store.credentials().clone())
            }
        };
        Ok(Self::Azure { provider, account: account.to_owned() })
    }

    pub(super) fn google(
        client: &reqwest::Client,
        bucket: &str,
        auth: &GcsAuth,
    ) -> Result<Self, StoreError> {
        match auth {
            GcsAuth::Anonymous | GcsAuth::Hmac { .. } => Ok(Self::Nobody),
            GcsAuth::AccessToken { token } => Ok(Self::Token(token.reveal().to_owned())),
            GcsAuth::ServiceAccount { key } => {
                let store = GoogleCloudStorageBuilder::new()
                    .with_bucket_name(bucket)
                    .with_service_account_key(key.reveal())
                    .with_http_connector(SharedClient(client.clone()))
                    .build()
                    .map_err(|error| wrong("the service account's key", &error))?;
                Ok(Self::Google(store.credentials().clone()))
            }
        }
    }

    /// The request, with everything that proves who sent it.
    pub(super) async fn sign(&self, call: &Call) -> Result<HttpRequest, StoreError> {
        let mut request = http::Request::builder().method(&call.method).uri(&call.url);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&call.headers);
        }
        let mut request = request
            .body(HttpRequestBody::from(call.body.clone()))
            .map_err(|error| wrong("the request", &error))?;
        let failed = |error: object_store::Error| StoreError::Credentials(error.to_string());
        match self {
            Self::Nobody => {}
            Self::Aws { credential, region } => {
                AwsAuthorizer::new(credential, "s3", region)
                    .try_authorize(&mut request, None)
                    .map_err(failed)?;
            }
            Self::Azure { provider, account } => {
                let renewed;
                let credential = match provider {
                    AzureProvider::Key(key) => key,
                    AzureProvider::Identity(identity) => {
                        renewed = identity.get_credential().await.map_err(failed)?;
                        renewed.as_ref()
                    }
                };
                AzureAuthorizer::new(credential, account)
                    .try_authorize(&mut request)
                    .map_err(failed)?;
            }
            Self::Token(token) => add_bearer_token(&mut request, token)?,
            Self::Google(provider) => {
                let credential = provider.get_credential().await.map_err(failed)?;
                add_bearer_token(&mut request, &credential.bearer)?;
            }
        }
        Ok(request)
    }
}

fn add_bearer_token(request: &mut HttpRequest, token: &str) -> Result<(), StoreError> {
    let mut value = http::HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|error| wrong("the token", &error))?;
    value.set_sensitive(true);
    request.headers_mut().insert(http::header::AUTHORIZATION, value);
    Ok(())
}
