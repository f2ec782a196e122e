"""Puts nginx in front of `rclone serve s3`, which answers a range with all of the object before it.

Ranges of payloads are read by nginx from rclone's directory, with status 206; everything else, and all of the index,
goes through to rclone: the tokens that commits depend on are from one server.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MISSING: Final = "nginx is not here: apt-get install nginx-light, or choose another --server"
_CONFIG: Final = """
{user}
worker_processes 2;
pid {home}/nginx.pid;
error_log {home}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_max_body_size 0;
  client_body_temp_path {home}/nginx-body;
  proxy_temp_path {home}/nginx-proxy;
  fastcgi_temp_path {home}/nginx-unused;
  uwsgi_temp_path {home}/nginx-unused;
  scgi_temp_path {home}/nginx-unused;
  default_type application/octet-stream;
  upstream rclone {{ server 127.0.0.1:{behind}; keepalive 16; }}
  map "$request_method $http_range $args" $ranged {{ default 0; "~^GET bytes=[0-9-]+ $" 1; }}
  server {{
    listen 127.0.0.1:{port};
    root {data};
    error_page 418 = @rclone;
    location / {{ if ($ranged = 0) {{ return 418; }} try_files $uri @rclone; }}
    location ~ /_swamp/ {{ return 418; }}
    location @rclone {{
      proxy_pass http://rclone;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_request_buffering off;
      proxy_buffering off;
    }}
  }}
}}
"""


@contextmanager
def honest_ranges(home: Path, data: Path, behind: int, port: int) -> Iterator[int]:
    """nginx on `port` before the rclone that serves the directory `data` on port `behind`; yields its process's id."""
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if nginx is None:
        raise SystemExit(MISSING)
    config = home / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(_CONFIG.format(user=user, home=home, data=data, behind=behind, port=port))
    command = [nginx, "-p", str(home), "-c", str(config), "-e", str(home / "nginx.log"), "-g", "daemon off;"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()
