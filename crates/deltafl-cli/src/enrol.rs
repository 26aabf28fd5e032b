//! `deltafl enrol`: let the devices of a fleet in.

use std::path::PathBuf;
use std::time::Duration;

use deltafl_device::enrolment;
use deltafl_server::authority::Authority;
use deltafl_wire::identity::{DeviceIdentity, DeviceName, Token};
use miette::Result;

use crate::certs::{block_on, identity_error};
use crate::error::bad_input;
use crate::serve::{StoreArgs, store_error};

/// Let the devices of a fleet in
#[derive(clap::Subcommand, Debug)]
pub(crate) enum EnrolCommand {
    /// Make a token that lets devices in; run it where the server's database is
    #[command(
        after_help = "Example:\n  deltafl enrol token --uses 100 --hours 48 --database sqlite:state/deltafl.sqlite"
    )]
    Token {
        /// How many devices may use it
        #[arg(long, value_name = "N", default_value_t = 1)]
        uses: u32,
        /// Hours until it expires
        #[arg(long, value_name = "HOURS", default_value_t = 24)]
        hours: u32,
        /// The folder of the certificates
        #[arg(long, value_name = "DIR", default_value = "certs")]
        certs: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Enrol this device with a token: its keys are made here and stay here
    #[command(
        after_help = "Example:\n  deltafl enrol device phone-17 --server https://fl.example.org:7780 --token deltafl-… --out identity"
    )]
    Device {
        /// The name of the device: a–z, 0–9, '-' and '_'
        name: DeviceName,
        /// The HTTP side of the server
        #[arg(long, value_name = "URL")]
        server: String,
        /// The token; better in the environment than on a command line that others can see
        #[arg(long, env = "DELTAFL_TOKEN", hide_env_values = true)]
        token: String,
        /// The folder of the device's identity
        #[arg(long, value_name = "DIR", default_value = "identity")]
        out: PathBuf,
    },
}

pub(crate) fn run(command: EnrolCommand) -> Result<()> {
    match command {
        EnrolCommand::Token { uses, hours, certs, store } => {
            let authority = Authority::open(&certs.join("ca")).map_err(identity_error)?;
            let token =
                Token::generate(authority.fingerprint(), authority.public_key()).map_err(identity_error)?;
            let lifetime = Duration::from_secs(u64::from(hours) * 3600);
            block_on(async {
                let store = store.open().await?;
                store.create_federation(authority.federation()).await.map_err(store_error)?;
                let hash = token.hash();
                store.add_token(authority.federation(), &hash, uses, lifetime).await.map_err(store_error)
            })?;
            println!("{}", *token.reveal());
            eprintln!("for {uses} devices, within {hours} hours; it is not stored and cannot be shown again");
        }
        EnrolCommand::Device { name, server, token, out } => {
            let token: Token = token.parse().map_err(|e| bad_input("the token is malformed").because(e))?;
            if out.join("device.json").exists() {
                return Err(bad_input(format!("{} holds an identity already", out.display())).into());
            }
            DeviceIdentity::prepare(&out).map_err(identity_error)?;
            let device = enrolment::enrol(&server, &token, name)
                .map_err(|e| bad_input("the device was not enrolled").because(e))?;
            device.save(&out).map_err(identity_error)?;
            println!("{} is device {} of {}", device.name(), device.number(), device.federation());
            println!("Identity: {}", out.display());
        }
    }
    Ok(())
}
