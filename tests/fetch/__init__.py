"""`stoker fetch` against servers: a real S3 server, and stand-ins for Hugging Face Hub and Google Cloud Storage."""
