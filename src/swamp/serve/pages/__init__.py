"""The pages that a browser sees: made on the server from the documents of the API, kept current by its event stream."""
