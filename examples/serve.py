"""Serve an encoder or a classifier: POST an image, get its features, or its class, as JSON.

effssl export predictions.classifier.safetensors --to onnx --out model.onnx
python examples/serve.py model.onnx 8000
curl --data-binary @photo.jpg http://127.0.0.1:8000
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy
import onnxruntime
from PIL import Image, ImageOps

model = onnxruntime.InferenceSession(sys.argv[1])
about = model.get_modelmeta().custom_metadata_map
classes, least = json.loads(about.get("classes", "[]")), int(about["least_side"])


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            image = Image.open(io.BytesIO(self.rfile.read(int(self.headers["Content-Length"]))))
            image.draft("RGB", (least, least))  # decodes a large JPEG at a fraction of its size, as effssl does
            pixels = numpy.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except (OSError, TypeError, ValueError, Image.DecompressionBombError) as error:
            return self.send_error(400, f"not an image: {type(error).__name__}")
        features, *probabilities = model.run(None, {"images": pixels[None]})
        found = dict(zip(classes, probabilities[0][0].tolist(), strict=True)) if classes else features[0].tolist()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())


server = HTTPServer(("127.0.0.1", int(sys.argv[2])), Server)
print(f"serving {sys.argv[1]} on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
